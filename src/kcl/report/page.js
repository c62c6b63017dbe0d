"use strict";
// The charts of the page: what is chosen in the filters, drawn by Plotly, with its numbers as a table and as files.
// Everything from a results file reaches the page as text: textContent here, entities in Plotly's labels.
(() => {
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a6761d", "#6f6fd6", "#7f7f7f"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
  const FIRST = 8; // groups drawn at first: more cannot be told apart
  const LOW = "#eef4f8", HIGH = "#0072b2";
  const at = (id) => document.getElementById(id);
  let data, state;

  // ---- numbers ----------------------------------------------------------------------------------------------------
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  function spread(values, band) {
    if (values.length < 2) return 0;
    const centre = mean(values);
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
    if (band === "deviation") return deviation;
    return data.t[values.length - 2] * deviation / Math.sqrt(values.length);
  }
  /** Mean and spread over runs of a number each; null where any run lacks it: nothing is averaged over what is there. */
  function over(runs, value) {
    const values = runs.map(value);
    if (!values.length || values.some((v) => v === null || v === undefined)) return null;
    return { mean: mean(values), spread: spread(values, state.band), size: values.length };
  }
  const runsOf = (group) => group.runs.filter((run) => !run.diverged && state.seeds.has(run.seed));
  function averageAfter(run, t) {
    const row = run.matrix[t];
    return row && row.every((value) => value !== null) ? mean(row) : null;
  }
  const onTask = (run, t, i) => (run.matrix[t] ? run.matrix[t][i] ?? null : null);
  /** Best accuracy on a task before the last one was learned, minus the last: a term of Eq. 13, in points. */
  function forgotten(run, i) {
    const last = run.matrix.length - 1;
    const column = run.matrix.slice(i, last).map((row) => row[i]);
    const end = onTask(run, last, i);
    return i >= last || end === null || column.some((value) => value === null) ? null : Math.max(...column) - end;
  }
  const share = (run) => run.seconds / run.together;
  const shown = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

  // ---- the page ---------------------------------------------------------------------------------------------------
  function element(tag, text = "", attributes = {}) {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }
  /** Plotly reads a few tags in its labels; a name from a file is text. */
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  function wrapped(text, width = 34) {
    const lines = [""];
    for (const word of text.split(" ")) {
      if ((lines.at(-1) + word).length > width && lines.at(-1)) lines.push("");
      lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
    }
    const kept = lines.slice(0, 3).map((line) => (line.length > width ? line.slice(0, width - 1) + "…" : line));
    return kept.map(plain).join("<br>") + (lines.length > 3 ? " …" : "");
  }
  function name(group) {
    const several = new Set(chosen().map((other) => other.benchmark)).size > 1;
    return several ? `${group.label} · ${group.benchmark}` : group.label;
  }
  const matching = () =>
    data.groups.filter(
      (group) =>
        (!state.benchmark || group.benchmark === state.benchmark) &&
        (!state.method || group.method === state.method) &&
        (!state.kernel || group.kernel === state.kernel) &&
        group.runs.some((run) => state.seeds.has(run.seed)),
    );
  const chosen = () => matching().filter((group) => state.chosen.has(group) && runsOf(group).length);
  const rgba = (colour, alpha) =>
    `rgba(${[1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16)).join(",")},${alpha})`;
  function look(group) {
    const place = state.places.get(group);
    return {
      colour: COLOURS[place % COLOURS.length],
      dash: DASHES[Math.floor(place / COLOURS.length) % DASHES.length],
      marker: MARKERS[place % MARKERS.length],
    };
  }

  // ---- traces -----------------------------------------------------------------------------------------------------
  function line(x, points, label, style, key) {
    const traces = [];
    const there = x.map((_, k) => k).filter((k) => points[k]);
    if (there.some((k) => points[k].spread > 0)) {
      const upper = there.map((k) => points[k].mean + points[k].spread);
      const lower = there.map((k) => points[k].mean - points[k].spread).reverse();
      const xs = there.map((k) => x[k]);
      traces.push({
        type: "scatter", mode: "lines", x: [...xs, ...[...xs].reverse()], y: [...upper, ...lower], fill: "toself",
        fillcolor: rgba(style.colour, 0.16), line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: key,
      });
    }
    traces.push({
      type: "scatter", mode: "lines+markers", name: label, legendgroup: key, x, y: points.map((p) => p && p.mean),
      text: points.map((p) => (p && p.spread ? ` ± ${p.spread.toFixed(2)}` : "")),
      line: { color: style.colour, dash: style.dash, width: 2 }, marker: { symbol: style.marker, size: 6 },
      hovertemplate: "%{y:.2f}%{text}<extra>%{fullData.name}</extra>",
    });
    return traces;
  }
  const axis = (title, more = {}) => ({
    title: { text: title, standoff: 8 }, gridcolor: "#d1d9e0", zeroline: false, linecolor: "#8c959f", ticks: "outside",
    tickcolor: "#8c959f", automargin: true, ...more,
  });
  const tasksAxis = (title, more = {}) => axis(title, { tickformat: "d", rangemode: "normal", ...more });

  const bandWords = () =>
    ({ interval: "band: 95 % interval", deviation: "band: standard deviation", runs: "every run a line" })[state.band];

  const CHARTS = {
    average: {
      draw() {
        const traces = [];
        for (const group of chosen()) {
          const runs = runsOf(group), style = look(group), label = wrapped(name(group)), key = name(group);
          const x = Array.from({ length: group.tasks }, (_, t) => t + 1);
          if (!group.history) {
            const end = over(runs, (run) => averageAfter(run, run.matrix.length - 1));
            if (end) traces.push(...line([1, group.tasks], [end, end], label, { ...style, dash: "longdash" }, key));
          } else if (state.band === "runs") {
            runs.forEach((run, place) => {
              const points = x.map((_, t) => averageAfter(run, t)).map((v) => v === null ? null : { mean: v, spread: 0 });
              const [trace] = line(x, points, label, style, key);
              traces.push({ ...trace, showlegend: place === 0, opacity: 0.7, text: x.map(() => ` (seed ${run.seed})`) });
            });
          } else {
            traces.push(...line(x, x.map((_, t) => over(runs, (run) => averageAfter(run, t))), label, style, key));
          }
        }
        return { traces, layout: { xaxis: tasksAxis("tasks learned"), yaxis: axis("average accuracy %") } };
      },
      table() {
        const most = Math.max(0, ...chosen().map((group) => group.tasks));
        const head = ["tasks learned", ...chosen().flatMap((group) => [name(group), "±"])];
        const rows = Array.from({ length: most }, (_, t) => [
          String(t + 1),
          ...chosen().flatMap((group) => pair(over(runsOf(group), (run) => averageAfter(run, t)))),
        ]);
        return { head, rows };
      },
      words: () =>
        `Average accuracy over the tasks seen, after each task. At the end: ${ends("average", 1, " %")}.`,
    },
    tasks: {
      one: true,
      draw() {
        const group = state.shown, traces = [];
        if (group) {
          for (let i = 0; i < group.tasks; i += 1) {
            const x = Array.from({ length: group.tasks - i }, (_, k) => i + k + 1);
            const points = x.map((t) => over(runsOf(group), (run) => onTask(run, t - 1, i)));
            const style = { colour: ramp(i / Math.max(1, group.tasks - 1)), dash: DASHES[i % 4], marker: MARKERS[i % 7] };
            traces.push(...line(x, points, `task ${i}`, style, `task ${i}`));
          }
        }
        return { traces, layout: { xaxis: tasksAxis("tasks learned"), yaxis: axis("accuracy on the task %") } };
      },
      table: matrixTable,
      words: () => `Accuracy on each task, from when it is learned to the end: ${state.shown ? name(state.shown) : ""}.`,
    },
    matrix: {
      one: true,
      draw() {
        const group = state.shown;
        if (!group) return { traces: [], layout: {} };
        const numbers = Array.from({ length: group.tasks }, (_, k) => k);
        const z = numbers.map((t) => numbers.map((i) => over(runsOf(group), (run) => onTask(run, t, i))?.mean ?? null));
        return {
          traces: [{
            type: "heatmap", x: numbers, y: numbers, z, xgap: 1, ygap: 1, hoverongaps: false,
            colorscale: [[0, LOW], [1, HIGH]], colorbar: { title: { text: "%" }, thickness: 12, outlinewidth: 0 },
            hovertemplate: "after task %{y}, accuracy on task %{x}: %{z:.2f} %<extra></extra>",
          }],
          layout: {
            xaxis: tasksAxis("accuracy on task", { showgrid: false }), hovermode: "closest",
            yaxis: tasksAxis("after learning task", { autorange: "reversed", showgrid: false }),
          },
        };
      },
      table: matrixTable,
      words: () => `Accuracy matrix of ${state.shown ? name(state.shown) : ""}: rows are tasks learned, columns tasks tested.`,
    },
    forgetting: {
      draw() {
        const traces = chosen().filter((group) => group.history && group.tasks > 1).map((group) => {
          const style = look(group);
          const x = Array.from({ length: group.tasks - 1 }, (_, i) => i);
          const points = x.map((i) => over(runsOf(group), (run) => forgotten(run, i)));
          return {
            type: "scatter", mode: "markers+lines", name: wrapped(name(group)), x, y: points.map((p) => p && p.mean),
            error_y: { type: "data", array: points.map((p) => (p ? p.spread : 0)), thickness: 1, width: 2 },
            line: { color: style.colour, dash: style.dash, width: 1 }, marker: { symbol: style.marker, size: 7 },
            hovertemplate: "%{y:.2f} points<extra>%{fullData.name}</extra>",
          };
        });
        return { traces, layout: { xaxis: tasksAxis("task"), yaxis: axis("forgotten, points of accuracy") } };
      },
      table() {
        const groups = chosen().filter((group) => group.history);
        const most = Math.max(0, ...groups.map((group) => group.tasks - 1));
        const rows = Array.from({ length: most }, (_, i) => [
          String(i), ...groups.flatMap((group) => pair(over(runsOf(group), (run) => forgotten(run, i)))),
        ]);
        return { head: ["task", ...groups.flatMap((group) => [name(group), "±"])], rows };
      },
      words: () => `What was forgotten of each task by the end. Average forgetting: ${ends("forgetting", 3, "")}.`,
    },
    cost: {
      measure: {
        bytes: { title: "kept between tasks, bytes", words: "the memory kept between tasks", value: (run) => run.bytes },
        seconds: { title: "seconds a run", words: "the time a run takes", value: share },
        cost: {
          title: "cost of a run", words: "what a run costs at that price", value: (run) => (share(run) / 3600) * state.price,
        },
      },
      draw() {
        const { title, value } = this.measure[state.measure];
        const traces = [];
        for (const group of chosen()) {
          const across = over(runsOf(group), value), up = over(runsOf(group), (run) => run.average), style = look(group);
          if (!across || !up) continue;
          traces.push({
            type: "scatter", mode: "markers", name: wrapped(name(group)), x: [across.mean], y: [up.mean], cliponaxis: false,
            error_x: { type: "data", array: [across.spread], thickness: 1 },
            error_y: { type: "data", array: [up.spread], thickness: 1 },
            marker: { color: style.colour, symbol: style.marker, size: 11 },
            hovertemplate: "%{x:.4~s}: %{y:.2f} %<extra>%{fullData.name}</extra>",
          });
        }
        const xaxis = axis(title, { rangemode: "tozero", tickformat: state.measure === "cost" ? "" : "~s" });
        return { traces, layout: { xaxis, yaxis: axis("average accuracy %"), hovermode: "closest" } };
      },
      table() {
        const { title, value } = this.measure[state.measure];
        const rows = chosen().map((group) => [
          name(group), ...pair(over(runsOf(group), value), 4), ...pair(over(runsOf(group), (run) => run.average)),
        ]);
        return { head: ["method", title, "±", "average accuracy %", "±"], rows };
      },
      words: () => `Average accuracy against ${CHARTS.cost.measure[state.measure].words}.`,
    },
  };
  /** From blue to orange through grey, dark enough on light and light enough on dark. */
  function ramp(part) {
    const [from, to] = part < 0.5 ? [[0, 114, 178], [128, 128, 128]] : [[128, 128, 128], [213, 94, 0]];
    const way = part < 0.5 ? part * 2 : part * 2 - 1;
    return "#" + from.map((c, k) => Math.round(c + (to[k] - c) * way).toString(16).padStart(2, "0")).join("");
  }
  const pair = (point, digits = 2) =>
    point ? [shown(point.mean, digits), point.size > 1 ? shown(point.spread, digits) : "–"] : ["–", "–"];
  const ends = (field, digits, unit) =>
    chosen().map((group) => {
      const end = over(runsOf(group), (run) => run[field]);
      return `${name(group)} ${end ? end.mean.toFixed(digits) + unit : "not measured"}`;
    }).join("; ") || "nothing is chosen";
  function matrixTable() {
    const group = state.shown;
    if (!group) return { head: [], rows: [] };
    const numbers = Array.from({ length: group.tasks }, (_, k) => k);
    const rows = numbers.map((t) => [
      `after task ${t}`, ...numbers.map((i) => shown(over(runsOf(group), (run) => onTask(run, t, i))?.mean)),
    ]);
    return { head: ["accuracy % on task", ...numbers.map(String)], rows };
  }

  // ---- drawing ----------------------------------------------------------------------------------------------------
  function tableOf({ head, rows, words = [0] }) {
    const table = element("table", "", { class: "grid" });
    const side = head.map((_, k) => (words.includes(k) ? {} : { class: "number" }));
    const top = table.createTHead().insertRow();
    head.forEach((text, k) => top.append(element("th", text, { scope: "col", ...side[k] })));
    const body = table.createTBody();
    for (const row of rows) {
      const made = body.insertRow();
      row.forEach((text, k) => made.append(k ? element("td", text, side[k]) : element("th", text, { scope: "row" })));
    }
    return table;
  }
  function draw(id) {
    const chart = CHARTS[id], place = at(`chart-${id}`);
    const { traces, layout } = chart.draw();
    const words = chart.words();
    place.setAttribute("aria-label", words);
    at(`words-${id}`).textContent = chart.one || id === "cost" ? words : `${words.split(". ")[0]}; ${bandWords()}.`;
    const narrow = place.clientWidth < 480;
    const entries = new Set(traces.filter((trace) => trace.showlegend !== false).map((trace) => trace.name)).size;
    const below = { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: { size: 11 } };
    Plotly.react(
      place,
      traces,
      {
        hovermode: "x", height: (narrow ? 300 : 360) + (id === "matrix" ? 0 : Math.min(entries, 20) * (id === "tasks" ? 5 : 14)),
        margin: { l: 56, r: 12, t: 12, b: 48 }, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff",
        font: { family: "system-ui, sans-serif", size: 12, color: "#1f2328" }, legend: below, showlegend: id !== "matrix",
        hoverlabel: { font: { size: 12 }, namelength: 40 }, ...layout,
      },
      { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false },
    );
    const details = at(`numbers-${id}`);
    if (details.open) details.querySelector("div").replaceChildren(tableOf(chart.table()));
  }
  function drawAll() {
    Object.keys(CHARTS).forEach(draw);
    drawRuns();
  }
  function drawRuns() {
    const rows = matching().flatMap((group) =>
      group.runs.filter((run) => state.seeds.has(run.seed)).map((run) => [
        group.label, group.benchmark, run.seed, run.diverged ? "diverged" : shown(run.average), shown(run.forgetting, 3),
        shown(run.learning), run.bytes === null ? "–" : String(run.bytes), shown(share(run), 1), run.device,
        data.commands[run.command] ?? "–",
      ]),
    );
    const head = ["method", "benchmark", "seed", "average accuracy %", "forgetting", "learning accuracy %", "kept bytes",
      "seconds", "device", "command"];
    state.runs = { head, rows, words: [0, 1, 8, 9] };
    at("runs-table").replaceChildren(tableOf(state.runs));
    at("runs-count").textContent = `${rows.length} of ${data.groups.reduce((n, group) => n + group.runs.length, 0)} runs`;
  }

  // ---- files ------------------------------------------------------------------------------------------------------
  function save(content, type, file) {
    const link = element("a", "", { href: URL.createObjectURL(new Blob([content], { type })), download: file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  /** Quoted where needed; a leading = + - @ would be a formula to a spreadsheet, unless it begins a number. */
  function csv({ head, rows }) {
    const cell = (text) => {
      const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
      return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    return [head, ...rows].map((row) => row.map((text) => cell(text === "–" ? "" : text)).join(",")).join("\r\n") + "\r\n";
  }
  async function saveSvg(id) {
    const uri = await Plotly.toImage(at(`chart-${id}`), { format: "svg", width: 800, height: 480 });
    save(decodeURIComponent(uri.slice(uri.indexOf(",") + 1)), "image/svg+xml", `kcl-${id}.svg`);
  }

  // ---- choices ----------------------------------------------------------------------------------------------------
  function options(select, texts, first) {
    const before = select.value;
    select.replaceChildren(element("option", "all", { value: "" }));
    for (const text of texts) select.append(element("option", text, { value: text }));
    select.value = texts.includes(before) ? before : first;
  }
  function checkbox(text, checked, change) {
    const label = element("label"), box = element("input", "", { type: "checkbox" });
    box.checked = checked;
    box.addEventListener("change", () => change(box.checked));
    label.append(box, element("span", text));
    return label;
  }
  const unique = (values) => [...new Set(values)].filter((value) => value !== null);
  /** The runs on offer, the first few chosen; each keeps its colour while others come and go. */
  function offer() {
    const groups = matching();
    groups.slice(0, state.touched ? 0 : FIRST).forEach((group) => state.chosen.add(group));
    groups.forEach((group) => state.places.has(group) || state.places.set(group, state.places.size));
    const several = !state.benchmark;
    at("groups").replaceChildren(...groups.map((group) => {
      const label = checkbox(several ? `${group.label} · ${group.benchmark}` : group.label, state.chosen.has(group), (on) => {
        state.touched = true;
        if (on) state.chosen.add(group); else state.chosen.delete(group);
        focusOn();
        drawAll();
      });
      const key = element("span", "", { class: "key", "aria-hidden": "true" });
      key.style.background = look(group).colour;
      label.querySelector("span").before(key);
      return label;
    }));
    focusOn();
  }
  /** Which group the charts of a single one show. */
  function focusOn() {
    const groups = chosen(), select = at("shown"), before = state.shown;
    const order = [...groups].sort((one, other) => Number(other.history) - Number(one.history));
    state.shown = groups.includes(before) ? before : order[0] ?? null;
    select.replaceChildren(...groups.map((group, k) => element("option", name(group), { value: String(k) })));
    select.value = String(groups.indexOf(state.shown));
  }
  function seedBoxes() {
    const seeds = unique(data.groups.flatMap((group) => group.runs.map((run) => run.seed)));
    seeds.sort((one, other) => Number(one) - Number(other));
    at("seeds").replaceChildren(...seeds.map((seed) => checkbox(seed, state.seeds.has(seed), (on) => {
      if (on) state.seeds.add(seed); else state.seeds.delete(seed);
      offer();
      drawAll();
    })));
  }
  function load() {
    data = JSON.parse(at("data").textContent);
    const before = state ?? { band: "interval", measure: "bytes", price: 1, seeds: new Set(), chosen: new Set() };
    const known = new Set([...at("seeds").querySelectorAll("span")].map((span) => span.textContent));
    const key = (group) => JSON.stringify([group.benchmark, group.label]);
    const keys = new Set([...before.chosen].map(key)), focus = before.shown && key(before.shown);
    state = {
      ...before, places: new Map(), shown: data.groups.find((group) => key(group) === focus) ?? null,
      // What was hidden stays hidden, what is new is shown.
      seeds: new Set(data.groups.flatMap((group) => group.runs.map((run) => run.seed))
        .filter((seed) => before.seeds.has(seed) || !known.has(seed))),
      chosen: new Set(before.touched ? data.groups.filter((group) => keys.has(key(group))) : []),
    };
    // One benchmark at first: accuracies of different ones say little side by side.
    for (const id of ["benchmark", "method", "kernel"]) {
      const known = unique(data.groups.map((group) => group[id]));
      options(at(id), known, id === "benchmark" ? known[0] ?? "" : "");
      state[id] = at(id).value;
    }
    seedBoxes();
    offer();
    drawAll();
  }
  function listen() {
    for (const id of ["benchmark", "method", "kernel"]) {
      at(id).addEventListener("change", () => {
        state[id] = at(id).value;
        if (id === "benchmark") Object.assign(state, { chosen: new Set(), places: new Map(), touched: false });
        offer();
        drawAll();
      });
    }
    at("band").addEventListener("change", () => { state.band = at("band").value; drawAll(); });
    at("measure").addEventListener("change", () => {
      state.measure = at("measure").value;
      at("price").parentElement.hidden = state.measure !== "cost";
      draw("cost");
    });
    at("price").addEventListener("input", () => { state.price = Math.max(0, Number(at("price").value) || 0); draw("cost"); });
    at("shown").addEventListener("change", () => {
      state.shown = chosen()[Number(at("shown").value)];
      draw("tasks");
      draw("matrix");
    });
    at("choose-all").addEventListener("click", () => choose(true));
    at("choose-none").addEventListener("click", () => choose(false));
    for (const [id, chart] of Object.entries(CHARTS)) {
      at(`svg-${id}`).addEventListener("click", () => saveSvg(id));
      at(`csv-${id}`).addEventListener("click", () => save(csv(chart.table()), "text/csv", `kcl-${id}.csv`));
      const details = at(`numbers-${id}`);
      details.addEventListener("toggle", () => {
        details.querySelector("div").replaceChildren(...(details.open ? [tableOf(chart.table())] : []));
      });
    }
    at("csv-runs").addEventListener("click", () => save(csv(state.runs), "text/csv", "kcl-runs.csv"));
    const paper = (width) => Object.keys(CHARTS).forEach((id) => Plotly.relayout(at(`chart-${id}`), width));
    window.addEventListener("beforeprint", () => paper({ width: 640, autosize: false }));
    window.addEventListener("afterprint", () => paper({ width: null, autosize: true }));
  }
  function choose(on) {
    state.touched = true;
    matching().forEach((group) => (on ? state.chosen.add(group) : state.chosen.delete(group)));
    offer();
    drawAll();
  }
  /** Served live, the page asks every two seconds whether there is more, and takes it over without being reloaded. */
  async function follow(version) {
    let now = version;
    try {
      now = await (await fetch("version")).text();
      if (now !== version) {
        const fresh = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
        for (const old of document.querySelectorAll("[data-fresh]")) {
          const part = fresh.getElementById(old.id);
          if (part) old.replaceChildren(...part.childNodes);
        }
        at("data").textContent = fresh.getElementById("data").textContent;
        load();
      }
      at("live").textContent = "live";
    } catch {
      at("live").textContent = "no longer served; this is the last state";
    }
    setTimeout(() => follow(now), 2000);
  }
  listen();
  load();
  document.documentElement.dataset.ready = "yes";
  if (document.body.dataset.version) follow(document.body.dataset.version);
})();
