"""The measurement model: what noisy grades say of true quality. Pure; `README.md` writes it in formulas."""
