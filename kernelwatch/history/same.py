"""Judges an A/A: two records of the same launches, measured before and after a change of the harness."""

from typing import Any

from kernelwatch.history.instrument import CELLS_LEAST, PROCESSES, Instrument, instrument
from kernelwatch.history.records import CellChange, Measured, Record

NOISIER = 2.0  # times the figure of the record before: as much fails
# What is lower is quiet, whatever it was before.
LEAST = {"spread": 0.0005, "spread_90": 0.002, "two_levels": 0.03, "canary_spread": 0.005}
MOVED_MOST = 0.05  # the share of cells that may seem to have moved: one in a hundred does by chance


def judge(before: Record, after: Record) -> tuple[list[str], dict[str, Any]]:
    """Why the A/A fails, a sentence each, [] if it does not; and its figures, as they are kept."""
    keys = [key for key, cell in before.cells.items() if _timed(before, key) and _timed(after, key)]
    moved = [key for key in keys if CellChange.between(before.cells[key], after.cells[key]).verdict]
    quiet = instrument(before), instrument(after)
    kept: dict[str, Any] = {"commit": after.commit, "machine": after.machine, "cells": len(keys), "moved": len(moved)}
    if before.commit != after.commit:
        kept["commit_before"] = before.commit
    others = [key for key in keys if not _same(before.cells[key], after.cells[key])]
    if before.commit != after.commit and others:
        return [
            f"an A/A is of the same launches: {len(others)} of {len(keys)} cells, such as {others[0]}, do not launch "
            f"at {after.commit} what they did at {before.commit}, or it is not known"
        ], kept
    sides = [{key for key in record.cells if _of_gpu(record, key)} for record in (before, after)]
    if lone := sorted(sides[0] ^ sides[1]):
        return [
            f"{len(lone)} GPU cells, such as {lone[0]}, were measured on one side only: what runs in between heats the "
            "GPU and moves its clock, so an A/A needs the same cells on both"
        ], kept
    if quiet[0] is None or quiet[1] is None:
        return [
            f"an A/A needs {CELLS_LEAST} cold GPU cells below 60 us, each measured by {PROCESSES} processes or more"
        ], kept
    why = [sentence for figure in LEAST if (sentence := _noisier(figure, *quiet))]  # type: ignore[arg-type]
    if len(moved) > MOVED_MOST * len(keys):
        why.append(f"{len(moved)} of {len(keys)} cells moved, such as {moved[0]}: raise the version")
    for name, one in zip(("before", "after"), quiet, strict=True):
        known = {figure: value for figure in LEAST if (value := getattr(one, figure)) is not None}
        kept[name] = {figure: float(f"{value:.3g}") for figure, value in known.items()}
    return why, kept


def _of_gpu(record: Record, key: str) -> bool:
    cell = record.cells.get(key)
    return cell is not None and cell.group.endswith(" gpu") and bool(cell.seconds)


def _timed(record: Record, key: str) -> bool:
    return _of_gpu(record, key) and len(record.cells[key].seconds) > 1


def _same(before: Measured, after: Measured) -> bool:
    return bool(before.identity) and before.identity == after.identity


def _noisier(figure: str, before: Instrument, after: Instrument) -> str:
    old, new = getattr(before, figure), getattr(after, figure)
    if old is None or new is None or new < max(NOISIER * old, LEAST[figure]):
        return ""
    return f"the instrument got worse: {figure} was {old:.3g} and is {new:.3g}"
