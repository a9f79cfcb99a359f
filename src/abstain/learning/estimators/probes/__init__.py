"""Probes over hidden states: linear, MLP, LSTM, attention, PCA."""
