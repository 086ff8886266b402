# SPDX-License-Identifier: BSD-3-Clause
"""plot_losses.py LOSSES.csv GUESS > PICTURE.svg: the losses that train_block wrote, those of the
padded run as a broad line and those of the packed run as a thin one on top of it, and a line at
GUESS, the loss of guessing by the frequency of each character."""
import csv
import html
import math
import sys

WIDTH, HEIGHT, LEFT, TOP = 640, 300, 56, 20
PADDED, PACKED, DASHED = "#a9cbe8", "#14509e", "#c8451b"


def text(x, y, words, anchor="middle", extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>'
            f'{html.escape(words)}</text>')


class Axes:
    def __init__(self, steps, top):
        self.steps, self.top = steps, top

    def x(self, step):
        return LEFT + WIDTH * step / self.steps

    def y(self, loss):
        return TOP + HEIGHT * (1 - loss / self.top)

    def grid(self):
        out = []
        for loss in range(self.top + 1):
            out.append(f'<path d="M{LEFT} {self.y(loss):.1f}h{WIDTH}" stroke="#ddd"/>')
            out.append(text(LEFT - 8, self.y(loss) + 4, str(loss), "end"))
        for n in range(7):
            step = round(self.steps * n / 6)
            out.append(text(self.x(step), TOP + HEIGHT + 18, str(step)))
        middle = TOP + HEIGHT / 2
        out.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, "step"))
        out.append(text(16, middle, "loss, nats per character",
                        extra=f'transform="rotate(-90 16 {middle})"'))
        return out

    def curve(self, losses, colour, width):
        points = " ".join(f"{self.x(n + 1):.1f},{self.y(loss):.1f}"
                          for n, loss in enumerate(losses))
        return (f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="{width}" stroke-linejoin="round"/>')


def legend(entries):
    out, x, y = [], LEFT + WIDTH - 270, TOP + 14
    for name, colour, style in entries:
        out.append(f'<path d="M{x} {y}h26" stroke="{colour}" {style}/>')
        out.append(text(x + 34, y + 4, name, "start"))
        y += 20
    return out


def picture(packed, padded, guess):
    axes = Axes(len(packed), math.ceil(max(packed + padded)))
    width, height = LEFT + WIDTH + 20, TOP + HEIGHT + 50
    dashed = 'stroke-width="1.4" stroke-dasharray="6 4"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>', *axes.grid(),
        f'<path d="M{LEFT} {axes.y(guess):.1f}h{WIDTH}" stroke="{DASHED}" {dashed}/>',
        axes.curve(padded, PADDED, 6), axes.curve(packed, PACKED, 1.4),
        *legend([("padded batches, with seqused", PADDED, 'stroke-width="6"'),
                 ("packed batches, with cu_seqlens", PACKED, 'stroke-width="1.4"'),
                 ("a guess by character frequencies", DASHED, dashed)]),
        "</svg>"])


def main(losses, guess):
    with open(losses, newline="") as file:
        rows = list(csv.DictReader(file))
    print(picture([float(row["packed"]) for row in rows], [float(row["padded"]) for row in rows],
                  float(guess)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
