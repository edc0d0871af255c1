//! The arithmetic of RAID 6: the field of 256 elements with the polynomial 0x11d.
//!
//! P is the sum of all data, Q the sum of each data block times 2 to the power of its number.
//! Source: H. Peter Anvin, "The mathematics of RAID-6".

/// Powers of 2, twice in a row, and logarithms.
struct Tables {
    power: [u8; 510],
    log: [u8; 256],
}

const TABLES: Tables = tables();

const fn tables() -> Tables {
    let (mut power, mut log) = ([0; 510], [0; 256]);
    let (mut value, mut exponent) = (1_u16, 0);
    while exponent < 255 {
        power[exponent] = value as u8;
        power[exponent + 255] = value as u8;
        log[value as usize] = exponent as u8;
        value <<= 1;
        if value & 0x100 != 0 {
            value ^= 0x11d;
        }
        exponent += 1;
    }
    Tables { power, log }
}

fn product(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.power[usize::from(TABLES.log[usize::from(a)]) + usize::from(TABLES.log[usize::from(b)])]
}

/// Returns 2 to a power.
fn power(exponent: usize) -> u8 {
    TABLES.power[exponent % 255]
}

fn inverse(value: u8) -> u8 {
    TABLES.power[255 - usize::from(TABLES.log[usize::from(value)])]
}

/// Adds `from` to `to`.
pub(super) fn add(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// Adds `from`, times 2 to the power of `exponent`, to `to`.
pub(super) fn add_multiple(to: &mut [u8], from: &[u8], exponent: usize) {
    let factor = power(exponent);
    let mut row = [0; 256];
    for (value, slot) in (0..=255).zip(&mut row) {
        *slot = product(value, factor);
    }
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= row[usize::from(*from)]);
}

/// Returns the block of number `exponent` from `q` less the part of all others.
pub(super) fn from_q(q: &mut [u8], exponent: usize) {
    let factor = inverse(power(exponent));
    q.iter_mut().for_each(|byte| *byte = product(*byte, factor));
}

/// Recovers two blocks: `p` and `q` are the sums less the part of all others. On return `p` is the
/// block of number `a`, and `q` that of number `b`.
pub(super) fn two(p: &mut [u8], q: &mut [u8], a: usize, b: usize) {
    // D_a + D_b = p and g^a D_a + g^b D_b = q, so D_a = (q + g^b p) / (g^a + g^b).
    let factor = inverse(power(a) ^ power(b));
    let by = power(b);
    for (p, q) in p.iter_mut().zip(q) {
        let first = product(*q ^ product(by, *p), factor);
        (*p, *q) = (first, *p ^ first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_recovered() {
        let data: Vec<Vec<u8>> = (0..5_u8)
            .map(|number| (0..64_u8).map(|at| at.wrapping_mul(7).wrapping_add(number * 31)).collect())
            .collect();
        for a in 0..5 {
            for b in a + 1..5 {
                let (mut p, mut q) = (vec![0; 64], vec![0; 64]);
                for number in [a, b] {
                    add(&mut p, &data[number]);
                    add_multiple(&mut q, &data[number], number);
                }
                two(&mut p, &mut q, a, b);
                assert_eq!((&p, &q), (&data[a], &data[b]));
            }
            let mut q = vec![0; 64];
            add_multiple(&mut q, &data[a], a);
            from_q(&mut q, a);
            assert_eq!(q, data[a]);
        }
    }
}
