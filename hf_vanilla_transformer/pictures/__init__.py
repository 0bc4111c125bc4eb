"""Pictures as `matplotlib.figure.Figure`: attention, positions, masks, the schedule, probabilities, curves."""
