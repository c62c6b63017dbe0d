// The filters, what happens when they change, and the page that follows growing results.
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
/** Which group the charts of a single one show: at first KCL, if it is there. */
function focusOn() {
  const groups = chosen(), select = at("shown"), before = state.shown;
  const rank = (group) => 2 * Number(group.history) + Number(group.method === "KCL");
  const order = [...groups].sort((one, other) => rank(other) - rank(one));
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
  const before = state ?? { band: "deviation", measure: "bytes", price: 1, seeds: new Set(), chosen: new Set() };
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
