// In the head, so that no page flashes in the wrong colours.
"use strict";
try {
  const theme = localStorage.getItem("postroom-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* a browser that keeps nothing has the system's theme */ }
