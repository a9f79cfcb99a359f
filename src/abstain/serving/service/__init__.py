"""The gate as a service: what is asked is gathered, scored by the live version, and recorded. It knows no HTTP."""
