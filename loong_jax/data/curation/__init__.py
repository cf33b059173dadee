"""Curation: chains of small filters over records, with counts (LongCat-Flash-Thinking A.1, A.2).

`stages` says what a filter is, `chain` runs them, `recipes` names chains. To find near-duplicates
in a list of texts: `duplicates.near_duplicates`.
"""
