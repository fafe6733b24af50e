// Runs in the head, so that the page does not flash in the wrong colours.
"use strict";
document.documentElement.classList.add("scripted");
try {
  const theme = localStorage.getItem("postroom-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* without storage, use the system's theme */ }
