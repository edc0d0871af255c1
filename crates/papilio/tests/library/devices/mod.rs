//! File systems of many devices that both the kernel and Papilio use: sizes, seed devices, filters
//! of a balance, and balances that were cut short.

mod filters;
mod interrupted;
mod seeds;
mod sizes;
mod world;
