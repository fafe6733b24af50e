// The logs of a job: new output, the end first, more of the start, wrapping and a search.
"use strict";
(() => {
  const MOST = 1 << 20, WRAP = "postroom-wrap";
  const part = (name, stream) => document.querySelector(`[data-${name}="${stream}"]`);
  const boxes = () => [...document.querySelectorAll(".log-box pre.log")];
  function settled(text) {
    // As on a terminal: text after a carriage return replaces the line.
    return text.split("\n").map((line) => {
      const parts = line.split("\r").filter(Boolean);
      return parts.length ? parts[parts.length - 1] : "";
    }).join("\n");
  }
  function atEnd(box) { box.scrollTop = box.scrollHeight; }
  boxes().forEach(atEnd);

  function show(stream, { text, mark, fresh, skipped, size }) {
    const box = document.getElementById(stream);
    if (!box) return;
    if (fresh) {
      box.textContent = text;
      missing(stream, skipped);
    } else {
      const shown = box.textContent, cut = shown.lastIndexOf("\n") + 1;
      let whole = shown.slice(0, cut) + settled(shown.slice(cut) + text);
      if (whole.length > MOST) {
        whole = whole.slice(whole.indexOf("\n", whole.length - MOST / 2) + 1);
        missing(stream, size - whole.length);
      }
      box.textContent = whole;
    }
    box.dataset.mark = mark;
    document.getElementById(stream + "-empty").hidden = box.textContent !== "";
    part("size", stream).textContent = size ? `${spaced(size)} bytes` : "";
    find(stream, 0, false);
    const follow = part("follow", stream);
    if (!follow || follow.checked) atEnd(box);
  }
  // A space between thousands, as the server writes them.
  function spaced(number) { return number.toLocaleString("en").replaceAll(",", "\u202f"); }
  function missing(stream, bytes) {
    const line = part("skipped", stream);
    line.hidden = !bytes;
    line.querySelector("span").textContent = `${spaced(bytes)} bytes before this are not shown.`;
  }
  document.body.addEventListener("postroom:log", (event) => show(event.detail.stream, event.detail));

  // More of the start: as much as the page shows at once.
  async function earlier(stream) {
    const job = document.getElementById("logs").dataset;
    const answer = await fetch(`/api/jobs/${job.job}/${job.number}/log?stream=${stream}&most=${MOST}`);
    if (!answer.ok) return;
    const box = document.getElementById(stream), below = box.scrollHeight - box.scrollTop;
    show(stream, await answer.json());
    box.scrollTop = box.scrollHeight - below;
    part("earlier", stream).hidden = true;
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-earlier]");
    if (button) earlier(button.dataset.earlier);
  });

  function wrap(on) {
    for (const box of boxes()) box.classList.toggle("unwrapped", !on);
    for (const tick of document.querySelectorAll("[data-wrap]")) tick.checked = on;
  }
  let wrapped = true;
  try { wrapped = localStorage.getItem(WRAP) !== "no"; } catch { /* wraps */ }
  wrap(wrapped);
  document.addEventListener("change", (event) => {
    if (!event.target.dataset.wrap) return;
    wrap(event.target.checked);
    try { localStorage.setItem(WRAP, event.target.checked ? "yes" : "no"); } catch { /* this page only */ }
  });

  // The search marks every place, and goes from one to the next.
  const at = new Map();
  function find(stream, step, scroll = true) {
    const field = part("find", stream), box = document.getElementById(stream), node = box.firstChild;
    const text = field.value.toLowerCase(), found = [];
    if (text && node) {
      const whole = node.data.toLowerCase();
      for (let from = whole.indexOf(text); from >= 0; from = whole.indexOf(text, from + text.length)) {
        const range = new Range();
        range.setStart(node, from); range.setEnd(node, from + text.length);
        found.push(range);
      }
    }
    // Logs are read from their end: so is the search.
    const last = found.length - 1, now = at.get(stream) ?? last;
    const place = found.length ? (Math.min(now, last) + step + found.length) % found.length : 0;
    if (step || !text) at.set(stream, text ? place : undefined);
    part("found", stream).textContent = !text ? "" : found.length ? `${place + 1} of ${found.length}` : "not found";
    if (window.CSS && CSS.highlights) {
      CSS.highlights.set("found-" + stream, new Highlight(...found));
      CSS.highlights.set("here-" + stream, new Highlight(...(found.length ? [found[place]] : [])));
    }
    if (scroll && found.length) {
      const seen = found[place].getBoundingClientRect(), frame = box.getBoundingClientRect();
      box.scrollTop += seen.top - frame.top - box.clientHeight / 2;
      box.scrollLeft += Math.min(0, seen.left - frame.left - 20) || Math.max(0, seen.right - frame.right + 20);
      const follow = part("follow", stream);
      if (follow) follow.checked = false;
    }
  }
  document.addEventListener("input", (event) => {
    const stream = event.target.dataset.find;
    if (!stream) return;
    at.delete(stream);
    find(stream, 0);
  });
  document.addEventListener("keydown", (event) => {
    const stream = event.target.dataset && event.target.dataset.find;
    if (!stream || event.key !== "Enter") return;
    event.preventDefault();
    find(stream, event.shiftKey ? 1 : -1);
  });
})();
