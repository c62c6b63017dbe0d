// From charts to the page, and to files.
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
      group.label, run.seed, run.diverged ? "diverged" : shown(run.average), shown(run.forgetting, 3),
      shown(run.learning), run.bytes === null ? "–" : String(run.bytes), shown(share(run), 1),
      group.benchmark, run.device, data.commands[run.command] ?? "–",
    ]),
  );
  const head = ["method", "seed", "average accuracy %", "forgetting", "learning accuracy %", "kept bytes", "seconds",
    "benchmark", "device", "command"];
  state.runs = { head, rows, words: [0, 7, 8, 9] };
  at("runs-table").replaceChildren(tableOf(state.runs));
  at("runs-count").textContent = `${rows.length} of ${data.groups.reduce((n, group) => n + group.runs.length, 0)} runs`;
}

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
