"""Files, disks, arguments, memory, the machine and Equation 3: what every room may use, and what knows no model."""
