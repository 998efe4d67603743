"""The plots of the command line. matplotlib is imported when one is drawn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zipccl.codec import wire
from zipccl.errors import ArgumentError
from zipccl.inspection import Exponents, Inspection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg", ".pdf")
_INK = "#222222"
_GREY = "#8a8f98"
_BLUE = "#2f6db3"
_ORANGE = "#e07b1f"
_PALETTE = ("#2f6db3", "#e07b1f", "#3b9b5b", "#a8479b", "#c8423d", "#b8a12c", "#16365c", "#7fb2e5")
_MARKERS = "osD^vP*X"
_VISIBLE_SHARE = 1e-4
"""Exponents that fewer values have are not drawn."""


class Speed(NamedTuple):
    """A point of the plot of speed against ratio; rates are of uncompressed bytes, in GB/s."""

    nbytes: int
    name: str
    ratio: float
    encode: float
    decode: float
    memcpy: float


def check(path: str) -> None:
    """Find out whether a plot can be written before it is measured for.

    Raises:
        ArgumentError: it cannot.
    """
    if not path.endswith(_SUFFIXES):
        raise ArgumentError(f"argument --plot: expected a name that ends in {', '.join(_SUFFIXES)}, found {path!r}")
    _figure(1, 1)
    folder = Path(path).absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK) or Path(path).is_dir():
        raise ArgumentError(f"argument --plot: {path} cannot be written")


def inspection(found: Inspection, name: str, path: Path) -> None:
    """Draw a tensor's exponents, with a Gaussian's, and the bits a value of its kinds of block."""
    figure = _figure(11 if found.exponents else 6.5, 4.4)
    figure.suptitle(
        f"{name}: {found.count:,} {found.dtype} values, {found.bits_per_value:.2f} bits each, ratio {found.ratio:.3f}",
        fontweight="bold",
    )
    if found.exponents is None:
        _draw_kinds(figure.subplots(), found)
    else:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_exponents(left, found.exponents)
        _draw_kinds(right, found)
    figure.savefig(path, dpi=150)


def speeds(points: Sequence[Speed], title: str, path: Path) -> None:
    """Draw speed against ratio, a panel for each size and a marker for each codec."""
    points = [point for point in points if point.nbytes]
    sizes = sorted({point.nbytes for point in points}) or [0]
    names = list(dict.fromkeys(point.name for point in points))
    figure = _figure(3.6 * len(sizes) + 2.2, 4.8)
    figure.suptitle(title, fontweight="bold")
    panels: list[Axes] = list(figure.subplots(1, len(sizes), sharex=True, sharey=True, squeeze=False)[0])
    for axes, nbytes in zip(panels, sizes, strict=True):
        here = [point for point in points if point.nbytes == nbytes]
        axes.set_title(_size(nbytes))
        for point in here:
            at = names.index(point.name)
            style: dict[str, Any] = {"color": _PALETTE[at % 8], "marker": _MARKERS[at % 8], "markersize": 8}
            axes.plot([point.ratio] * 2, [point.encode, point.decode], color=style["color"], linewidth=1, alpha=0.6)
            axes.plot(point.ratio, point.encode, linestyle="", label=point.name, **style)
            axes.plot(point.ratio, point.decode, linestyle="", fillstyle="none", markeredgewidth=1.6, **style)
        if here:
            axes.axhline(here[0].memcpy, color=_GREY, linestyle="--", linewidth=1.2, label="memcpy")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_plain)
        axes.grid(True, which="both", axis="y", color="#e6e8eb", linewidth=0.7)
        axes.set_xlabel("ratio")
    _tick_ratios(panels[0], [point.ratio for point in points])
    panels[0].set_ylabel("GB/s of uncompressed bytes")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside right center", frameon=False, alignment="left",
        title="filled: encode\nopen: decode",
    )  # fmt: skip
    figure.savefig(path, dpi=150)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ArgumentError(
            'argument --plot: drawing needs the package matplotlib: pip install "zipccl[plot]"'
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def _draw_exponents(axes: Axes, exponents: Exponents) -> None:
    shares = exponents.histogram / exponents.histogram.sum()
    bias = shares.size // 2 - 1
    visible = np.flatnonzero(np.maximum(shares, exponents.gaussian)[1:] > _VISIBLE_SHARE) + 1
    first, last = (int(visible[0]), int(visible[-1])) if visible.size else (bias, bias)
    fields = np.arange(first, last + 1)
    axes.bar(fields, 100 * shares[fields], width=0.86, color=_BLUE, label="this tensor")
    # The Gaussian stands for the values that are not zero.
    scale = (1 - shares[0]) / max(1 - float(exponents.gaussian[0]), _VISIBLE_SHARE)
    axes.plot(
        fields, 100 * scale * exponents.gaussian[fields], color=_ORANGE, marker="o", markersize=3.5, linewidth=1.6,
        label="a Gaussian of the same median",
    )  # fmt: skip
    step = max(1, -(-fields.size // 9))
    ticks = [field for field in fields[::-1] if (field - last) % step == 0]
    labels = [f"$2^{{{field - bias}}}$" for field in ticks]
    if shares[0] > _VISIBLE_SHARE:
        zero = first - 2
        axes.bar(zero, 100 * shares[0], width=0.86, color=_GREY)
        ticks.append(zero)
        labels.append("0")
    axes.set_xticks(ticks, labels)
    axes.set_xlabel("magnitude" + " (0: zeros and subnormals)" * bool(shares[0] > _VISIBLE_SHARE))
    axes.set_ylabel("% of the values")
    axes.set_title(
        f"Exponents: entropy {exponents.entropy:.2f} bits, "
        f"{exponents.block_entropy:.2f} within blocks; a Gaussian's {exponents.gaussian_entropy:.2f}",
        fontsize=10,
    )
    axes.margins(y=0.16)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")


def _draw_kinds(axes: Axes, found: Inspection) -> None:
    kinds = found.kinds[::-1]
    bits = [kind.bits_per_value for kind in kinds]
    names = [kind.name.replace(", as the whole array", "") for kind in kinds]
    axes.barh(names, bits, color=[_GREY if kind.blocks == 0 else _BLUE for kind in kinds], height=0.62)
    plain = 8 * wire.dtype_named(found.dtype).itemsize
    for place, kind in enumerate(kinds):
        share = 100 * kind.values / found.count
        text = f"{kind.bits_per_value:.2f}  ({share:.3g} % of the values)"
        inside = kind.bits_per_value > 0.6 * plain
        axes.text(
            kind.bits_per_value + plain * (-0.015 if inside else 0.015), place, text, va="center",
            ha="right" if inside else "left", color="white" if inside else _INK, fontsize=9,
        )  # fmt: skip
    axes.axvline(plain, color=_INK, linestyle=":", linewidth=1.2)
    axes.text(plain, 1.01, "raw", transform=axes.get_xaxis_transform(), ha="center", fontsize=9)
    axes.set_xlim(0, 1.04 * plain)
    room = max(0.0, (4 - len(kinds)) / 2)
    axes.set_ylim(-0.6 - room, len(kinds) - 0.4 + room)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"bits a value, without the directory's {8 * found.directory_nbytes / max(1, found.count):.2f}")
    axes.set_title(f"Kinds of block ({found.count // wire.BLOCK_COUNT:,} blocks of 256)", fontsize=10, loc="left")


def _tick_ratios(axes: Axes, ratios: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = min([1.0, *ratios]), max([1.1, *ratios])
    step = next((step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if (high - low) / step < 6), 200)
    ticks = np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
    axes.set_xlim(low / 1.03, high * 1.03)
    axes.xaxis.set_major_locator(FixedLocator(list(ticks[ticks > 0])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_plain)


def _plain(value: float, _: float) -> str:
    return f"{value:g}"


def _size(nbytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"
