"""Probes over hidden states: linear, LSTM, attention, PCA."""
