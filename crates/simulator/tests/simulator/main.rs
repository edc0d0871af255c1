//! The tests of the simulator.

mod crash_states;
mod faults;
mod fsync_kernel;
mod fsync_states;
mod hostile_streams;
mod kernel;
mod limits;
mod lying_devices;
mod mutations;
mod random_operations;
