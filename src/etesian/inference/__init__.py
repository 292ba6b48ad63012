"""How a trained model is run and measured: forecasts, climatology, references, scores."""
