"""The machinery of flat storages, which map path → file: plans of the operations, and what runs them."""
