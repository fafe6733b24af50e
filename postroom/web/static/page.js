// Live updates, theme, confirmation dialogs and keyboard shortcuts.
"use strict";
(() => {
  const one = (query) => document.querySelector(query);
  const emit = (name, detail) => document.body.dispatchEvent(new CustomEvent(name, { detail }));

  // Requests of htmx carry the form key in a header; plain forms have a hidden field.
  document.body.addEventListener("htmx:configRequest", (event) => {
    event.detail.headers["X-Form-Key"] = one('meta[name="form-key"]').content;
  });
  // Show error pages too: they say what to do.
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status === 400) event.detail.shouldSwap = true;
  });
  // Do not refresh the list while jobs are selected or somebody types; refresh afterwards.
  let missed = false;
  function busy() {
    const live = one("#live"), at = document.activeElement;
    return one("dialog[open]") || (live && (live.querySelector("input:checked") ||
      (live.contains(at) && at.matches("input:not([type=checkbox]), select, textarea"))));
  }
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt.id !== "live" || !busy()) return;
    missed = true;
    event.preventDefault();
  });
  // What somebody has unfolded stays so.
  let unfolded = [];
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "live" && busy()) {  // since the refresh was asked for
      missed = true;
      event.detail.shouldSwap = false;
    }
    unfolded = [...document.querySelectorAll("details[open][id]")].map((one) => one.id);
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    for (const id of unfolded) {
      const found = document.getElementById(id);
      if (found) found.open = true;
    }
  });
  for (const name of ["htmx:sendError", "htmx:responseError"]) {
    document.body.addEventListener(name, () => { missed = true; });
  }

  // A visible page has one open connection, a hidden page none.
  let source = null, retry = 0, failures = 0;
  const lost = one("#lost"), trouble = one("#trouble");
  function open() {
    clearTimeout(retry);
    if (source || document.hidden) return;
    const logs = one("#logs[data-live]");
    const live = one("#live");
    const query = new URLSearchParams({ seen: (live && live.dataset.seen) || "" });
    if (logs) {
      query.set("run", logs.dataset.job);
      query.set("number", logs.dataset.number);
      for (const box of document.querySelectorAll("pre.log")) query.set(box.id, box.dataset.mark);
    }
    source = new EventSource("/events?" + query);
    source.onopen = () => {
      failures = 0;
      lost.hidden = true;
      document.documentElement.dataset.live = "yes";
    };
    source.onerror = () => {
      close();
      failures += 1;
      if (failures > 1) lost.hidden = false;
      retry = setTimeout(open, Math.min(1000 * failures, 10000));
    };
    for (const name of ["change", "job", "cards", "log"]) {
      source.addEventListener(name, (event) => emit("postroom:" + name, JSON.parse(event.data)));
    }
    source.addEventListener("trouble", (event) => {
      const text = JSON.parse(event.data).text;
      trouble.textContent = text && text + ". This page may be out of date; trying again.";
      trouble.hidden = !text;
    });
  }
  function close() {
    if (source) source.close();
    source = null;
    document.documentElement.dataset.live = "no";
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close(); else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();

  // Durations that count on.
  function spell(seconds) {
    const s = Math.max(0, seconds), two = (a, x, b, y) => `${a} ${x} ${b} ${y}`;
    if (s < 10) return s.toFixed(1) + " s";
    const w = Math.round(s), d = Math.floor;
    if (w < 60) return w + " s";
    if (w < 3600) return two(d(w / 60), "min", w % 60, "s");
    if (w < 86400) return two(d(w / 3600), "h", d(w % 3600 / 60), "min");
    return two(d(w / 86400), "d", d(w % 86400 / 3600), "h");
  }
  setInterval(() => {
    if (document.hidden) return;
    if (missed && !busy()) {
      missed = false;
      emit("postroom:change");
      emit("postroom:job");
    }
    for (const element of document.querySelectorAll("[data-since]")) {
      element.textContent = spell(Date.now() / 1000 - Number(element.dataset.since));
    }
  }, 1000);

  // After an action the page is where it was; its answer sticks to the top of the window.
  const place = "postroom-place";
  try {
    document.addEventListener("submit", () => {
      sessionStorage.setItem(place, JSON.stringify([location.pathname, scrollY]));
    });
    const [path, y] = JSON.parse(sessionStorage.getItem(place) || "[]");
    if (path === location.pathname && one(".note.answer")) scrollTo(0, y);
  } catch { /* a browser that stores nothing shows the top of the page */ }

  // Ask before an action that cannot be undone.
  const dialog = one("#sure");
  let asked = null;
  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!button || !button.dataset.sure || asked === button) return;
    event.preventDefault();
    one("#sure-text").textContent = button.dataset.sure.replace("{n}", chosen());
    one("#sure-yes").textContent = button.dataset.yes || "Yes";
    dialog.onclose = () => {
      if (dialog.returnValue !== "yes") return;
      asked = button;
      button.form.requestSubmit(button);
    };
    dialog.returnValue = "no";
    dialog.showModal();
  });
  // How many jobs are selected, in words; "" when none is.
  function chosen() {
    const every = one("#every");
    const count = every && every.checked ? one("#matching").dataset.total || "" :
      String(document.querySelectorAll('input[name="job"]:checked').length);
    if (count === "") return "all jobs that match";
    return count === "0" ? "" : count === "1" ? "1 job" : count + " jobs";
  }
  function count() {
    if (!one("#selected")) return;
    const words = chosen();
    one("#selected").textContent = words ? words + " selected" : "Select jobs";
    for (const button of document.querySelectorAll(".chosen button")) button.disabled = !words;
  }
  document.addEventListener("change", (event) => {
    if (event.target.id === "all") {
      for (const box of document.querySelectorAll('input[name="job"]')) box.checked = event.target.checked;
    }
    count();
  });
  document.body.addEventListener("htmx:afterSettle", count);
  addEventListener("pageshow", count);
  // On a phone, the menu and the filters unfold.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-fold]");
    if (!button) return;
    const open = one("#" + button.dataset.fold).classList.toggle("open");
    button.setAttribute("aria-expanded", String(open));
  });
  document.addEventListener("click", (event) => {
    const bar = event.target.closest("[data-href]");
    if (bar) location.href = bar.dataset.href;
  });

  // Themes: system, light, dark.
  const themes = ["", "light", "dark"], symbols = ["◐", "☀", "☾"];
  const labels = ["Theme: system", "Theme: light", "Theme: dark"];
  const button = one("#theme");
  function show(place) {
    if (themes[place]) document.documentElement.dataset.theme = themes[place];
    else delete document.documentElement.dataset.theme;
    button.textContent = symbols[place];
    button.setAttribute("aria-label", labels[place]);
    button.title = labels[place];
    emit("postroom:theme");
  }
  let theme = Math.max(0, themes.indexOf(document.documentElement.dataset.theme || ""));
  show(theme);
  button.addEventListener("click", () => {
    theme = (theme + 1) % themes.length;
    try { localStorage.setItem("postroom-theme", themes[theme]); } catch { /* for this page only */ }
    show(theme);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    one("#search").focus();
  });
})();
