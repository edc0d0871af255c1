//! Scrub with the kernel as judge: file systems of every profile that keeps copies or parity get
//! seeded bad sectors and lost blocks. Papilio's scrub and the kernel's find the same faults in
//! copies of the same images. Papilio's heals them; afterwards the kernel's scrub finds none.

mod degraded;
mod kernel;
mod lost;
mod planted;
mod replace;
mod statistics;
mod world;
