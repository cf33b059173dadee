"""LongCat-Flash: a mixture of experts with zero-computation and shortcut-connected experts."""
