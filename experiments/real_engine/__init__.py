"""Scheduling policies on a real engine and a real trainer."""
