"""What a full-size run needs, measured: nothing here is part of the product."""
