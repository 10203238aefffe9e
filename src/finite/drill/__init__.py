"""The fault drill: faults put into short real trainings, one at a time, and what came of each. See tools/fault_drill.py."""
