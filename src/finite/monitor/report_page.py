"""The look of a report: one page with style, script and pictures inside. It asks the network for nothing, and says so to
the browser (Content-Security-Policy)."""

from collections.abc import Sequence
from html import escape

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1c2330;--soft:#5b6675;--line:#d9dee5;--accent:#0b62c4;
--bad:#b3261e;--good:#1b7a3d;--band:#eef2f7;--odd:#e3e9f1;
--c0:#0072b2;--c1:#d55e00;--c2:#008f68;--c3:#b0508a;--c4:#8a6d00;--c5:#3d8fc0;--c6:#444c58}
@media(prefers-color-scheme:dark){:root{--paper:#12161d;--card:#1a202a;--ink:#e5e9f0;--soft:#9ba6b6;--line:#313a48;--accent:#7ab7ff;
--bad:#ff8a80;--good:#7fd79b;--band:#1a212c;--odd:#222b38;
--c0:#56b4e9;--c1:#ff9a4d;--c2:#3fd3a4;--c3:#e09ac6;--c4:#e8d24a;--c5:#9cc9ff;--c6:#c9d1dc}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 1.2rem}
header{padding-top:1.6rem}h1{font-size:1.7rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.25rem;margin:2.6rem 0 .8rem}
h3{font-size:1rem;margin:1.4rem 0 .5rem}p{margin:.4rem 0}.soft,figcaption{color:var(--soft)}a{color:var(--accent)}
nav{position:sticky;top:0;z-index:2;background:var(--paper);border-bottom:1px solid var(--line);margin-top:1rem}
nav ul{display:flex;gap:1.1rem;overflow-x:auto;list-style:none;margin:0 auto;padding:.6rem 1.2rem;max-width:1180px}
nav a{text-decoration:none;white-space:nowrap}section{scroll-margin-top:3.2rem}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px;border-radius:4px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static;display:block;padding:.4rem 1.2rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(135px,1fr));gap:.7rem;margin:1.2rem 0 0;padding:0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.7rem .9rem}
.tiles dt{color:var(--soft);font-size:.85rem}.tiles dd{margin:0;font-size:1.45rem;font-weight:650;font-variant-numeric:tabular-nums}
.tiles .bad dd{color:var(--bad)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:1.4rem}
figure{margin:0;min-width:0}figcaption{font-weight:600;margin-bottom:.2rem}
.chart svg{display:block;width:100%;height:auto;touch-action:pan-y}.chart text{font-size:12px;fill:var(--soft)}
.chart .stage{font-weight:600}.chart path{fill:none;stroke-width:1.6;stroke-linejoin:round}.grid-line,.chart .grid{stroke:var(--line)}
.band{fill:var(--band)}.band.odd{fill:var(--odd)}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}
circle.c0{fill:var(--c0)}circle.c1{fill:var(--c1)}circle.c2{fill:var(--c2)}circle.c3{fill:var(--c3)}circle.c4{fill:var(--c4)}
circle.c5{fill:var(--c5)}circle.c6{fill:var(--c6)}
.dashed{stroke-dasharray:5 4}.chart path.faint{stroke-width:1;opacity:.28}.mark path{stroke:var(--bad);stroke-width:1.3}.mark path+path{fill:var(--bad)}
.chart text.gap{fill:var(--bad);font-size:14px}.cursor{stroke:var(--ink);stroke-dasharray:2 3}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;list-style:none;margin:.2rem 0 0;padding:0;font-size:.87rem}
.chart .legend svg{display:inline-block;width:18px;height:8px;margin-right:.35rem}.legend path{fill:none;stroke-width:2.5}
.readout{display:block;min-height:1.4em;font-size:.87rem;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.25rem .9rem .25rem 0;text-align:left;vertical-align:top}th{color:var(--soft);font-weight:600}
.n{text-align:right;white-space:nowrap}.scroll tr>:first-child{white-space:nowrap}tbody tr{border-top:1px solid var(--line)}
.confusion td,.confusion th{padding:.3rem .5rem;text-align:center;min-width:2.6rem}.confusion th[scope=row]{text-align:right}
.confusion tbody td{border:1px solid var(--line)}
.sheets img{display:block;width:100%;height:auto;border-radius:8px;border:1px solid var(--line)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:1rem}
.card{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--bad);border-radius:8px;padding:.8rem 1rem;overflow-wrap:anywhere}
.card h3{margin:0 0 .3rem}.card img{display:block;max-width:100%;height:auto;margin-top:.6rem;border-radius:6px}.card dl{display:grid;grid-template-columns:auto 1fr;gap:.1rem .8rem;margin:.4rem 0 0;font-size:.92rem}
.card dt{color:var(--soft)}.card dd{margin:0}.none{color:var(--good)}
details{margin:.6rem 0}summary{cursor:pointer;font-weight:600}pre{overflow-x:auto;background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:.8rem 1rem;font-size:.85rem}ol.events{padding-left:0;list-style:none;max-height:24rem;overflow-y:auto}
ol.events li{padding:.15rem 0;overflow-wrap:anywhere}ol.events b{font-variant-numeric:tabular-nums}
footer{color:var(--soft);font-size:.87rem;padding-top:2rem;padding-bottom:2rem}
@media(max-width:560px){body{font-size:15px}.tiles{grid-template-columns:repeat(2,1fr)}.chart text{font-size:17px}}
@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--bad:#b3261e;--band:#f4f6f9;--odd:#e8edf3;
--c0:#0072b2;--c1:#d55e00;--c2:#008f68;--c3:#b0508a;--c4:#8a6d00;--c5:#3d8fc0;--c6:#444c58}
nav,.skip,.readout{display:none}body{font-size:11pt}figure,.card,tr,.tiles div{break-inside:avoid}h2,h3{break-after:avoid}
.grid{grid-template-columns:1fr 1fr}ol.events{max-height:none}pre{white-space:pre-wrap}.band,.confusion td{print-color-adjust:exact}}
"""

#: Walks along the curves: mouse or finger, and with the keyboard left, right, Home, End. And opens what is folded for print.
SCRIPT = """
for (const chart of document.querySelectorAll('.chart')) {
  const data = JSON.parse(chart.querySelector('script').textContent), svg = chart.querySelector('svg');
  const cursor = svg.querySelector('.cursor'), out = chart.querySelector('output');
  const steps = [...new Set(data.curves.flatMap(c => c.steps))].sort((a, b) => a - b);
  const marks = new Map(); for (const [s, t] of data.marks) marks.set(s, t);
  let at = -1;
  const show = i => {
    at = Math.max(0, Math.min(steps.length - 1, i));
    const step = steps[at], share = (step - data.x[0]) / Math.max(data.x[1] - data.x[0], 1);
    const x = data.frame[0] + share * (data.frame[1] - data.frame[0]);
    cursor.setAttribute('x1', x); cursor.setAttribute('x2', x); cursor.setAttribute('visibility', 'visible');
    const told = data.curves.map(c => { const k = c.steps.indexOf(step); return k < 0 || c.texts[k] === '-' ? '' : c.name + ' ' + c.texts[k]; });
    out.textContent = 'step ' + step + ': ' + told.filter(Boolean).join(', ') + (marks.has(step) ? '. ' + marks.get(step) : '');
  };
  svg.addEventListener('pointermove', e => {
    const box = svg.getBoundingClientRect(), x = (e.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const step = data.x[0] + (x - data.frame[0]) / (data.frame[1] - data.frame[0]) * (data.x[1] - data.x[0]);
    let best = 0; for (let i = 1; i < steps.length; i++) if (Math.abs(steps[i] - step) < Math.abs(steps[best] - step)) best = i;
    show(best);
  });
  svg.addEventListener('keydown', e => {
    const far = e.shiftKey ? 10 : 1, to = {ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: steps.length - 1}[e.key];
    if (to !== undefined) { show(to); e.preventDefault(); }
  });
}
addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(d => { d.dataset.was = d.open ? 1 : ''; d.open = true; }));
addEventListener('afterprint', () => document.querySelectorAll('details').forEach(d => { d.open = !!d.dataset.was; }));
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str, str]], foot: str) -> str:
    """A whole page. `sections` are (id, heading, body as HTML); those with an empty body are left out."""
    shown = [section for section in sections if section[2]]
    links = "".join(f"<li><a href='#{name}'>{escape(heading)}</a></li>" for name, heading, _ in shown)
    body = "".join(f"<section id='{name}' aria-labelledby='h-{name}'><h2 id='h-{name}'>{escape(heading)}</h2>{text}</section>"
                   for name, heading, text in shown)  # fmt: skip
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\"><link rel='icon' href='data:,'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><a class='skip' href='#main'>to the content</a>"
        f"<header><h1>{escape(title)}</h1>{lead}</header><nav aria-label='sections'><ul>{links}</ul></nav>"
        f"<main id='main'>{body}</main><footer>{escape(foot)}</footer><script>{SCRIPT}</script></body></html>\n"
    )


def tiles(entries: Sequence[tuple[str, str, bool]]) -> str:
    """Figures that are read first: (label, text, whether it is bad news)."""
    return "<dl class='tiles'>" + "".join(
        f"<div{' class=bad' if bad else ''}><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text, bad in entries
    ) + "</dl>"  # fmt: skip


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False) -> str:
    """A table: the first column to the left, the others to the right, unless they hold `words`."""
    def kind(i: int) -> str:
        return " class='n'" if i and not words else ""

    head = "".join(f"<th scope='col'{kind(i)}>{escape(c)}</th>" for i, c in enumerate(columns))
    body = "".join("<tr>" + "".join(f"<td{kind(i)}>{escape(c)}</td>" for i, c in enumerate(row)) + "</tr>" for row in rows)
    return scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", "table")


def listing(rows: Sequence[tuple[str, str]]) -> str:
    """Names with a text each."""
    body = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return scrolling(f"<table><tbody>{body}</tbody></table>", "listing")


def scrolling(inner: str, name: str) -> str:
    """A wide thing that scrolls by itself, also by keyboard, so that the page need not."""
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(name, quote=True)}'>{inner}</div>"
