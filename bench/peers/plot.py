# SPDX-License-Identifier: BSD-3-Clause
"""plot.py ATTNBENCH.csv PEERS.csv > PICTURE.svg: share of the machine's limit over S, a panel for
each element type, mask and head size, libattn's instruction sets and the peers in each.

A peer's share is libattn's, as attnbench measured it on its fastest instruction set, over the
peer's ratio to libattn, so that only shares taken beside the limit are used. A case or a peer
without a number is left out.
"""
import collections
import csv
import html
import re
import sys

NAME = re.compile(r"(full|causal)-d(64|128)-s(\d+)$")
COLOURS = {"libattn-eager": "#8c6d1f", "torch-sdpa": "#c8451b", "ort-mha": "#2a7f5f",
           "ort-gqa": "#7a4fa3", "torch-cudnn": "#c8451b", "torch-flash": "#2a7f5f",
           "torch-efficient": "#7a4fa3", "torch-varlen": "#8c6d1f", "limit": "#999"}
OURS = ("#14509e", "#5b9bd5", "#9cc3e6", "#bcbcbc")
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 190, 46, 58, 44


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def our_curves(rows):
    """{(type, mask, D): {isa: {S: share}}} and {(type, mask, D, S): share of the fastest}."""
    curves, best = collections.defaultdict(dict), {}
    for row in rows:
        name = NAME.match(row["case"])
        ours = row["backend"] == "cpu" and row["pass"] in ("fwd", "forward")
        if not name or not ours or not row["share"]:
            continue
        panel, s = (row["dtype"], name[1], int(name[2])), int(name[3])
        share, ms = float(row["share"]), float(row["median_ms"])
        curves[panel].setdefault("libattn " + row["isa"], {})[s] = share
        if (*panel, s) not in best or ms < best[*panel, s][0]:
            best[*panel, s] = ms, share
    return curves, {key: share for key, (_, share) in best.items()}


def add_peers(curves, best, rows):
    for row in rows:
        name = NAME.match(row["case"])
        if not name or not row["ratio_to_libattn"] or row["peer"] == "libattn":
            continue
        panel, s = (row["dtype"], name[1], int(name[2])), int(name[3])
        if (*panel, s) in best:
            share = best[*panel, s] / float(row["ratio_to_libattn"])
            curves[panel].setdefault(row["peer"], {})[s] = share


def text(x, y, words, anchor="middle", extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>'
            f'{html.escape(words)}</text>')


def panel_svg(panel, curves, colours, x0, y0, top):
    sizes = sorted({s for curve in curves.values() for s in curve})
    place = {s: x0 + WIDTH * (n + 0.5) / len(sizes) for n, s in enumerate(sizes)}
    dtype, mask, d = panel
    out = [text(x0 + WIDTH / 2, y0 - 8, f"{dtype} {mask}, D = {d}", extra='font-weight="bold"')]
    for fifth in range(6):
        y = y0 + HEIGHT * (1 - fifth / 5)
        out.append(f'<path d="M{x0} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        out.append(text(x0 - 6, y + 4, f"{top * fifth / 5:g}", "end"))
    out += [text(x, y0 + HEIGHT + 16, str(s)) for s, x in place.items()]
    for name, curve in curves.items():
        points = [(place[s], y0 + HEIGHT * (1 - min(curve[s] / top, 1))) for s in sorted(curve)]
        colour = colours[name]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        width = 2.5 if name.startswith("libattn ") else 1.4
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" '
                   f'stroke-width="{width}"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in points]
    return out


def legend(colours, x, y):
    out = []
    for name, colour in colours.items():
        out.append(f'<path d="M{x} {y}h18" stroke="{colour}" stroke-width="3"/>')
        out.append(text(x + 23, y + 4, name, "start"))
        x += 40 + 7 * len(name)
    return out


def picture(curves, footer, tops=None):
    """curves: {(type, mask, D): {name: {S: value}}}. tops: what is at the top of a type's panels; 1
    where it is not told."""
    names = list(dict.fromkeys(name for panel in curves.values() for name in panel))
    ours = [name for name in names if name.startswith("libattn ")]
    colours = {name: OURS[min(n, len(OURS) - 1)] for n, name in enumerate(ours)}
    colours |= {name: COLOURS.get(name, "#444") for name in names if name not in ours}
    columns = sorted({panel[1:] for panel in curves}, key=lambda p: (p[0] != "full", p[1]))
    dtypes = list(dict.fromkeys(panel[0] for panel in curves))
    width = len(columns) * (WIDTH + LEFT) + 20
    height = TOP + len(dtypes) * (HEIGHT + GAP) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="#fff"/>', *legend(colours, LEFT, 18)]
    for row, dtype in enumerate(dtypes):
        for column, rest in enumerate(columns):
            if (dtype, *rest) in curves:
                out += panel_svg((dtype, *rest), curves[dtype, *rest], colours,
                                 LEFT + column * (WIDTH + LEFT), TOP + row * (HEIGHT + GAP),
                                 (tops or {}).get(dtype, 1))
    out.append(text(width / 2, height - 8, footer))
    return "\n".join(out + ["</svg>"])


def main(attnbench, peers):
    curves, best = our_curves(read(attnbench))
    add_peers(curves, best, read(peers))
    if not curves:
        sys.exit("plot: no case has a share")
    print(picture(curves, "tokens S; share of the limit measured beside each case"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
