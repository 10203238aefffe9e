"""An audit as one self-contained HTML page: findings with drawn thumbnails, histograms, a heat map of box centres.

Everything is inside the file (pictures as data URLs, charts as SVG): it can be mailed, and opens without a network. All
text from the data is escaped.
"""

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image, ImageDraw

from finite.data.audit import Audit
from finite.data.audit_show import groups, place
from finite.data.images import ImageError, open_rgb
from finite.data.sample import Finding, ImageRecord
from finite.data.text import printable

_THUMB = 220  # px, longer side of a thumbnail
_PER_GROUP = 12  # thumbnails of one kind of finding
_LISTED = 2000  # lines of one kind of finding that are listed
_GRID = 24  # cells of the heat map along each side
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1100px;padding:0 1rem;color:#1d2430;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;
text-align:left;vertical-align:top;font-variant-numeric:tabular-nums}th{color:#5a6472;font-weight:600}td.n,th.n{text-align:right}
.charts{display:flex;flex-wrap:wrap;gap:2rem 1.6rem;margin-top:1.4rem}figure{margin:0;max-width:100%}figcaption{color:#5a6472;margin-bottom:.4rem}
.thumbs{display:flex;flex-wrap:wrap;gap:.8rem;margin:.6rem 0}
.thumbs figure{width:220px;font-size:12px;overflow-wrap:anywhere}
.refuse,.drop_file,.drop_image,.leak{color:#b3261e}.drop_object{color:#9a5b00}.fix{color:#006a77}.note{color:#5a6472}
summary{cursor:pointer}details{margin:.5rem 0 1rem}li{overflow-wrap:anywhere}svg{max-width:100%}svg text{font-size:11px;fill:#1d2430}
@media(prefers-color-scheme:dark){body{background:#14181f;color:#e4e8ee}svg text{fill:#e4e8ee}
th,figcaption,.note{color:#9aa5b4}
.refuse,.drop_file,.drop_image,.leak{color:#ff8a80}.drop_object{color:#ffc166}.fix{color:#6fd6e4}}
"""


def page(audit: Audit) -> str:
    """The page as HTML text."""
    records = {record.id: record for members in audit.image_set.splits.values() for record in members}
    name = escape(printable(audit.image_set.root.name or str(audit.image_set.root)))
    verdict = "can be trained on"
    if not audit.usable:
        verdict = f"cannot be trained on: {escape(printable(audit.why_unusable()))}"
    boxes = _relative_boxes(records.values())
    negative = f", {audit.images_negative} more are said to hold nothing" if audit.images_negative else ""
    parts = [
        f"<h1>{name}</h1><p>Format {escape(audit.image_set.format)}; this set {verdict}. {audit.images_usable} of "
        f"{audit.images_total} images usable{negative}; {audit.objects_usable} of "
        f"{audit.objects_total} objects usable; {len(audit.findings)} finding{'s' * (len(audit.findings) != 1)}.</p>",
        "<h2>Findings, worst first</h2>",
        *(_group(audit, group, records) for group in groups(audit.findings)),
        "" if audit.findings else "<p>None.</p>",
        "<h2>What the set holds</h2>",
        _splits(audit),
        "<div class='charts'>",
        _bars("Objects per class", list(audit.classes.items())),
        _bars("Objects by size, in shares of the picture's side", _size_histogram(boxes)),
        _heat_map(boxes),
        "</div>",
        _statistics(audit),
    ]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'>"
        f"<title>Data audit: {name}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def thumbnail(record: ImageRecord | None, path, finding: Finding) -> Image.Image | None:
    """The picture of a finding, `_THUMB` px large: usable boxes green, the faulty one red, also where it lies outside.

    None where the picture cannot be opened. path: pathlib.Path.
    """
    try:
        image = open_rgb(path)
    except ImageError:
        return None
    left, top, right, bottom = _view(image.size, finding.box)
    scale = _THUMB / max(right - left, bottom - top)
    thumb = Image.new("RGB", _scaled_size((right - left, bottom - top), scale), "#8a8f98")
    small = image.resize(_scaled_size(image.size, scale), Image.Resampling.BILINEAR, reducing_gap=2)
    thumb.paste(small, (round(-left * scale), round(-top * scale)))
    draw = ImageDraw.Draw(thumb)
    for obj in record.objects if record else ():
        _rectangle(draw, obj.box, (left, top), scale, "#35c46a", 1)
    if finding.box is not None:
        _rectangle(draw, finding.box, (left, top), scale, "#ff2d20", 2)
    return thumb


def _view(size: tuple[int, int], box: Sequence[float] | None) -> tuple[float, float, float, float]:
    """What a thumbnail shows: the picture, and of a box that reaches out as much as a third of the picture's side."""
    width, height = size
    if box is None:
        return 0, 0, width, height
    xs, ys = sorted((box[0], box[2])), sorted((box[1], box[3]))
    return (
        max(-width / 3, min(0, xs[0])),
        max(-height / 3, min(0, ys[0])),
        min(4 * width / 3, max(width, xs[1])),
        min(4 * height / 3, max(height, ys[1])),
    )


def _scaled_size(size: tuple[float, float], scale: float) -> tuple[int, int]:
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _rectangle(
    draw: ImageDraw.ImageDraw, box: Sequence[float], origin: tuple[float, float], scale: float, colour: str, width: int
) -> None:
    xs = sorted(min(max((side - origin[0]) * scale, -4.0), _THUMB + 3.0) for side in (box[0], box[2]))
    ys = sorted(min(max((side - origin[1]) * scale, -4.0), _THUMB + 3.0) for side in (box[1], box[3]))
    draw.rectangle((xs[0], ys[0], xs[1], ys[1]), outline=colour, width=width)
    if xs[1] - xs[0] < 3 or ys[1] - ys[0] < 3:  # hardly to be seen: a ring around it
        x, y = sum(xs) / 2, sum(ys) / 2
        draw.ellipse((x - 9, y - 9, x + 9, y + 9), outline=colour, width=width)


def _group(audit: Audit, group: list[Finding], records: dict[str, ImageRecord]) -> str:
    first = group[0]
    style = "leak" if first.reason.startswith("LEAK") else first.action
    thumbs = []
    for finding in group:
        if finding.image is None or len(thumbs) == _PER_GROUP:
            continue
        record = records.get(finding.image)
        picture = thumbnail(record, record.path if record else audit.image_set.root / finding.image, finding)
        if picture is not None:
            thumbs.append(
                f"<figure><img src='{_data_url(picture)}' alt=''><div>{escape(place(finding))}</div>"
                f"<div>{escape(finding.reason)}</div></figure>"
            )
    rows = "".join(
        f"<li>{escape(place(f))}{f' [<code>{escape(f.value)}</code>]' if f.value else ''}: {escape(f.reason)}</li>"
        for f in group[:_LISTED]
    )
    more = f"<li>and {len(group) - _LISTED} more: see --json</li>" if len(group) > _LISTED else ""
    return (
        f"<details {'open' if len(group) <= 10 else ''}><summary class='{style}'><b>{escape(first.kind)}</b> "
        f"({escape(first.action.replace('_', ' '))}), {len(group)}</summary><ul>{rows}{more}</ul>"
        f"<div class='thumbs'>{''.join(thumbs)}</div></details>"
    )


def _data_url(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _splits(audit: Audit) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class='n'>{len(records)}</td><td class='n'>"
        f"{sum(len(record.objects) for record in records)}</td></tr>"
        for name, records in audit.image_set.splits.items()
    )
    return f"<table><tr><th>split</th><th class='n'>images</th><th class='n'>objects</th></tr>{rows}</table>"


def _relative_boxes(records) -> np.ndarray:
    """(N, 4) centre x, centre y, width, height of all usable objects as shares of their picture."""
    rows = [
        ((x0 + x1) / 2 / r.width, (y0 + y1) / 2 / r.height, (x1 - x0) / r.width, (y1 - y0) / r.height)
        for r in records
        for obj in r.objects
        if not obj.ignore
        for x0, y0, x1, y1 in (obj.box,)
    ]
    return np.asarray(rows, dtype=np.float64).reshape(-1, 4)


def _size_histogram(boxes: np.ndarray) -> list[tuple[str, int]]:
    edges = np.array([0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0])
    counts, _ = np.histogram(np.sqrt(boxes[:, 2] * boxes[:, 3]), edges)
    return [(f"{low:.0%} to {high:.0%}", int(count)) for low, high, count in zip(edges[:-1], edges[1:], counts)]


def _bars(title: str, rows: list[tuple[str, int]]) -> str:
    """A horizontal bar chart as SVG, as wide as a telephone."""
    most = max((count for _, count in rows), default=0) or 1
    shown = rows[:100]
    lines = []
    for position, (name, count) in enumerate(shown):
        y, width = 20 * position, 160 * count / most
        label = name if len(name) <= 20 else name[:19] + "\u2026"
        lines.append(
            f"<text x='130' y='{y + 14}' text-anchor='end'>{escape(label)}<title>{escape(name)}</title></text>"
            f"<rect x='138' y='{y + 3}' width='{width:.1f}' height='14' fill='#3b7dd8'/>"
            f"<text x='{144 + width:.1f}' y='{y + 14}'>{count}</text>"
        )
    rest = f"<div>and {len(rows) - len(shown)} more</div>" if len(rows) > len(shown) else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption><svg width='350' height='{20 * len(shown) + 4}' role='img'>"
        f"{''.join(lines)}</svg>{rest}</figure>"
    )


def _heat_map(boxes: np.ndarray) -> str:
    """Box centres over the picture's area, all pictures stretched to one square; darker is more."""
    counts, _, _ = np.histogram2d(boxes[:, 1], boxes[:, 0], _GRID, ((0, 1), (0, 1)))
    most = max(counts.max(), 1)
    cells = "".join(
        f"<rect x='{10 * x}' y='{10 * y}' width='10' height='10' fill='#b3261e' fill-opacity='"
        f"{counts[y, x] / most:.2f}'><title>{int(counts[y, x])}</title></rect>"
        for y in range(_GRID)
        for x in range(_GRID)
        if counts[y, x]
    )
    side = 10 * _GRID
    return (
        f"<figure><figcaption>Where box centres lie (darkest cell: {int(counts.max())})</figcaption>"
        f"<svg width='{side}' height='{side}' role='img'>"
        f"<rect width='{side}' height='{side}' fill='none' stroke='#9aa5b4'/>"
        f"{cells}</svg></figure>"
    )


def _statistics(audit: Audit) -> str:
    targets = audit.statistics.get("targets", {})
    rows = "".join(
        f"<tr><td>{name}</td>"
        + "".join(f"<td class='n'>{figure[key]:.4g}</td>" for key in ("mean", "std", "min", "max"))
        + "</tr>"
        for name, figure in targets.items()
    )
    for name, label in (("aspect_ratio", "width / height"), ("area_share", "share of the picture")):
        if figure := audit.statistics.get(name):
            rows += (
                f"<tr><td>{label}</td><td class='n'>{figure['median']:.3g} (median)</td><td></td>"
                f"<td class='n'>{figure['min']:.3g}</td><td class='n'>{figure['max']:.3g}</td></tr>"
            )
    sizes = ", ".join(f"{escape(size)} ({count})" for size, count in audit.statistics.get("picture_sizes", {}).items())
    more = audit.statistics.get("picture_sizes_total", 0) - len(audit.statistics.get("picture_sizes", {}))
    return (
        f"<h2>Targets, in pixels of the network's input</h2><table><tr><th>target</th><th class='n'>mean</th>"
        f"<th class='n'>sigma"
        f"</th><th class='n'>min</th><th class='n'>max</th></tr>{rows}</table><p>Picture sizes: {sizes}"
        f"{f' and {more} others' if more > 0 else ''}.</p>"
        if targets
        else ""
    )
