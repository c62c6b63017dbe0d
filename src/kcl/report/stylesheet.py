"""The page's looks: one card per section, light and dark, narrow screens and paper."""

STYLESHEET = """
:root {
  color-scheme: light dark;
  --ink: #1f2328; --muted: #59636e; --line: #d1d9e0; --paper: #ffffff; --ground: #f6f8fa;
  --accent: #0067a3; --edge: #868f99; --mark: #fff3cd;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --muted: #9ea7b3; --line: #3d444d; --paper: #161b22; --ground: #0d1117;
    --accent: #56b4e9; --edge: #6e7781; --mark: #4a3a08;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 68rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
h1 { margin: 0 0 .25rem; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .75rem; font-size: 1.25rem; }
h3 { margin: 1.5rem 0 .5rem; font-size: 1rem; color: var(--muted); }
p { margin: .25rem 0 .75rem; }
section {
  margin-top: 1.25rem; padding: 1.25rem; background: var(--paper); border: 1px solid var(--line); border-radius: .6rem;
}
.muted, caption, figcaption, footer { color: var(--muted); font-size: .875rem; }
footer { margin-top: 1.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; margin: 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { padding-bottom: .4rem; text-align: left; }
.grid caption { font-weight: 600; }
.scroll + .scroll { margin-top: .75rem; }
th { font-weight: 600; }
.grid { width: 100%; font-size: .875rem; }
.grid th, .grid td { padding: .35rem .55rem; border-bottom: 1px solid var(--line); text-align: left; }
.grid thead th { color: var(--muted); vertical-align: bottom; }
.grid .number { text-align: right; }
.grid td { white-space: nowrap; }
.grid tr.differs > * { background: var(--mark); }
.grid tr.differs th::before { content: "≠ "; }
.grid small { display: block; color: var(--muted); font-weight: 400; }
.best { color: var(--accent); }
.tall { max-height: 24rem; overflow-y: auto; }
#runs th { white-space: nowrap; }
.tall thead th { position: sticky; top: 0; background: var(--paper); }
.row { display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; }
.filters { display: grid; gap: .75rem; margin-bottom: 1.25rem; }
.filters > * { min-width: 0; }
label { display: inline-flex; gap: .4rem; align-items: center; max-width: 100%; font-size: .875rem; }
label { color: var(--muted); }
label[hidden] { display: none; }
select, input, button, summary { font: inherit; color: var(--ink); }
select, input[type=number], button {
  min-height: 2rem; max-width: 100%; padding: .15rem .6rem;
  background: var(--ground); border: 1px solid var(--edge); border-radius: .4rem;
}
select { min-width: 0; text-overflow: ellipsis; }
input[type=number] { width: 6rem; }
input[type=checkbox] { accent-color: var(--accent); margin: 0; }
button { cursor: pointer; font-size: .8rem; }
button:hover { border-color: var(--accent); }
:is(select, input, button, summary):focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
fieldset { margin: 0; padding: .5rem .75rem .75rem; min-width: 0; border: 1px solid var(--line); border-radius: .4rem; }
legend, summary { color: var(--muted); font-size: .875rem; }
summary { cursor: pointer; padding: .2rem 0; overflow-wrap: anywhere; }
.boxes { display: flex; flex-wrap: wrap; gap: .35rem 1.1rem; }
.boxes { max-height: 10rem; margin-bottom: .5rem; overflow-y: auto; }
.boxes label { color: var(--ink); overflow-wrap: anywhere; }
.key { flex: none; width: .8rem; height: .8rem; border-radius: .2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 2rem 1.5rem; }
.seen th { white-space: nowrap; }
.images { display: flex; flex-wrap: nowrap; gap: .5rem; }
.images span { display: inline-flex; flex-direction: column; align-items: center; max-width: 6rem; }
.images img { width: 2.6rem; height: 2.6rem; image-rendering: pixelated; border: 1px solid var(--line); }
.images small { white-space: normal; text-align: center; line-height: 1.2; }
figure { margin: 0; min-width: 0; }
figure h3 { margin: 0; color: var(--ink); }
figure .buttons { display: flex; gap: .4rem; margin-left: auto; }
.chart { min-height: 18rem; margin-top: .4rem; }
.wide { flex: 1; min-width: 0; }
/* Charts are drawn for paper, as they are saved; on the screen they take the page's tones. */
.chart .main-svg, .chart .bg { background: none !important; fill: none !important; }
.chart :is(.xtick, .ytick, .g-xtitle, .g-ytitle, .legend, .colorbar) text { fill: var(--ink) !important; }
.chart .gridlayer path { stroke: var(--line) !important; }
pre {
  margin: 0; padding: .6rem .9rem; width: max-content; min-width: 100%;
  background: var(--ground); border: 1px solid var(--line); border-radius: .4rem;
  font: .85rem/1.5 ui-monospace, "Liberation Mono", monospace;
}
@media (max-width: 40rem) {
  body { padding: 1rem .6rem 2rem; }
  section { padding: .9rem; }
  h1 { font-size: 1.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
}
@media print {
  body { max-width: none; padding: 0; background: none; font-size: 10pt; }
  section { padding: 0; border: 0; }
  h2, h3, caption, p { break-after: avoid; }
  figure, pre, tr { break-inside: avoid; }
  .charts { display: block; }
  figure { margin-bottom: 1rem; }
  .filters, figure .buttons, figure details, #csv-runs { display: none; }
  .tall { max-height: none; }
  .scroll { overflow: visible; }
  pre { width: auto; white-space: pre-wrap; }
  .grid { font-size: 7.5pt; }
  .grid th, .grid td { padding: .2rem .35rem; }
}
"""
