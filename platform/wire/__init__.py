"""How requests and answers of REST are written: exact quantities, strict reading, stable pages. Knows no app."""
