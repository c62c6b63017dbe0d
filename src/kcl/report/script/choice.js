// What is chosen in the filters, and how it is named and drawn.
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
