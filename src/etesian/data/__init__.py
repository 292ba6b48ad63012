"""The datasets: roles of the variables, periods, windows, the order of the samples, normalisation."""
