// A small chart for each GPU: memory and load of the last hour.
"use strict";
(() => {
  if (!document.querySelector("[data-chart]")) return;
  const SPAN = 3600, series = new Map(), plots = new Map();
  const ink = (name) => {
    const mark = document.querySelector(".ink." + name);
    return mark ? getComputedStyle(mark).backgroundColor : "gray";
  };
  function add(at, cards) {
    for (const [card, [memory, load]] of Object.entries(cards)) {
      if (!series.has(card)) series.set(card, [[], [], []]);
      const data = series.get(card);
      if (data[0].length && at <= data[0].at(-1)) continue;
      // Leave a gap in the curve where there were no readings; the scheduler makes one a minute.
      if (data[0].length && at - data[0].at(-1) > 150) {
        data[0].push(at - 0.1); data[1].push(null); data[2].push(null);
      }
      data[0].push(at); data[1].push(memory); data[2].push(load);
      while (data[0].length && data[0][0] < at - SPAN) for (const column of data) column.shift();
    }
  }
  function draw() {
    for (const box of document.querySelectorAll("[data-chart]")) {
      const card = box.dataset.chart, data = series.get(card);
      if (!data) continue;
      let plot = plots.get(card);
      if (plot && plot.root.parentElement !== box) { plot.destroy(); plot = null; }
      if (!plot) {
        box.replaceChildren();
        const line = (name) => ({ stroke: () => ink(name), width: 1.5, points: { show: false }, spanGaps: false });
        plot = new uPlot({
          width: box.clientWidth || 240, height: 64, padding: [4, 0, 4, 0],
          cursor: { show: false }, legend: { show: false },
          scales: {
            // Starts with one minute and widens, so that a new page does not look empty.
            x: { time: true, range: (_, min, max) => [max - Math.min(SPAN, Math.max(60, max - min)), max] },
            y: { range: [0, 100] },
          },
          axes: [{ show: false }, { show: false }],
          series: [{}, line("memory"), line("load")],
        }, data, box);
        plots.set(card, plot);
      } else plot.setData(data);
    }
  }
  function resize() {
    for (const plot of plots.values()) {
      const box = plot.root.parentElement;
      if (box && box.clientWidth) plot.setSize({ width: box.clientWidth, height: 64 });
    }
  }
  const gib = (mib) => mib < 1024 ? Math.round(mib) + " MiB" : (mib / 1024).toFixed(1) + " GiB";
  function write(cards) {
    for (const element of document.querySelectorAll("[data-reading]")) {
      const reading = cards[element.dataset.card];
      if (!reading) continue;
      const [memory, load] = reading;
      if (element.dataset.reading === "load") element.textContent = load === null ? "–" : load + " %";
      else element.textContent = memory === null ? "–" : gib(memory * element.dataset.total / 100);
    }
  }
  // Live readings that come before the recorded ones wait for them: a curve only grows at its end.
  let early = [];
  document.body.addEventListener("postroom:cards", (event) => {
    const { at, cards } = event.detail;
    write(cards);
    if (early) early.push([at, cards]);
    else { add(at, cards); draw(); }
  });
  document.body.addEventListener("htmx:afterSettle", draw);
  document.body.addEventListener("postroom:theme", () => plots.forEach((plot) => plot.redraw()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((plot) => plot.redraw()));
  addEventListener("resize", resize);
  fetch("/api/readings").then((answer) => answer.ok ? answer.json() : []).catch(() => []).then((readings) => {
    for (const [at, cards] of [...readings, ...early]) add(at, cards);
    early = null;
    draw();
  });
})();
