// Adds new output to the log of a job.
"use strict";
(() => {
  const MOST = 1 << 20;
  function settled(text) {
    // As on a terminal: text after a carriage return replaces the line.
    return text.split("\n").map((line) => {
      const parts = line.split("\r").filter(Boolean);
      return parts.length ? parts[parts.length - 1] : "";
    }).join("\n");
  }
  function atEnd(box) { box.scrollTop = box.scrollHeight; }
  for (const name of ["out", "err"]) {
    const box = document.getElementById(name);
    if (box && document.querySelector(`[data-follow="${name}"]`)) atEnd(box);
  }
  document.body.addEventListener("postroom:log", (event) => {
    const { stream, text, mark, fresh, skipped, size } = event.detail;
    const box = document.getElementById(stream);
    if (!box) return;
    if (fresh) {
      box.textContent = (skipped ? `[${skipped} bytes skipped]\n` : "") + text;
    } else {
      const shown = box.textContent, cut = shown.lastIndexOf("\n") + 1;
      let whole = shown.slice(0, cut) + settled(shown.slice(cut) + text);
      if (whole.length > MOST) whole = "[earlier output not shown]\n" + whole.slice(whole.indexOf("\n", whole.length - MOST / 2) + 1);
      box.textContent = whole;
    }
    box.dataset.mark = mark;
    document.getElementById(stream + "-empty").hidden = box.textContent !== "";
    document.querySelector(`[data-size="${stream}"]`).textContent = size ? `${size} bytes` : "";
    const follow = document.querySelector(`[data-follow="${stream}"]`);
    if (follow && follow.checked) atEnd(box);
  });
})();
