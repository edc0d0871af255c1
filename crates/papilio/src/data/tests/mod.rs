//! Tests of the data layer: against the kernel, and on trees made by hand.

mod by_hand;
