//! The parity of RAID5 and RAID6: XOR, and P and Q over GF(2^8).
//!
//! Owns the field arithmetic (polynomial 0x11d, generator 2) and [`Syndrome`], which adds up a row
//! column by column and then solves for one or two lost columns. For data columns D0, D1, ... P =
//! D0 + D1 + ... and Q = D0 + 2 D1 + 4 D2 + ..., where + is XOR.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `lib/raid6` (its polynomial and Q are the same; see also H. Peter Anvin,
//! "The mathematics of RAID-6").

/// The field's polynomial without its highest bit: x^8 + x^4 + x^3 + x^2 + 1.
const POLYNOMIAL: u8 = 0x1d;
/// The multiplicative group has 255 elements, all powers of 2.
const GROUP_ORDER: usize = 255;

/// Powers of 2 and their logarithms (that of 0 is unused).
struct Tables {
    power: [u8; GROUP_ORDER],
    logarithm: [u8; 256],
}

static TABLES: Tables = make_tables();

const fn make_tables() -> Tables {
    let mut tables = Tables { power: [0; GROUP_ORDER], logarithm: [0; 256] };
    let mut value = 1u8;
    let mut exponent = 0;
    while exponent < GROUP_ORDER {
        tables.power[exponent] = value;
        tables.logarithm[value as usize] = exponent as u8;
        value = (value << 1) ^ (if value & 0x80 != 0 { POLYNOMIAL } else { 0 });
        exponent += 1;
    }
    tables
}

/// Returns 2 to the power of `exponent`.
fn power(exponent: usize) -> u8 {
    TABLES.power[exponent % GROUP_ORDER]
}

/// Returns 2 to the power of minus `exponent`.
fn inverse_power(exponent: usize) -> u8 {
    power(GROUP_ORDER - exponent % GROUP_ORDER)
}

fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let logarithm = |value: u8| usize::from(TABLES.logarithm[usize::from(value)]);
    power(logarithm(a) + logarithm(b))
}

/// Returns 1 / `value`; `value` must not be 0.
fn inverse(value: u8) -> u8 {
    assert_ne!(value, 0, "0 has no inverse");
    inverse_power(TABLES.logarithm[usize::from(value)].into())
}

/// Returns all products with one factor.
fn products(factor: u8) -> [u8; 256] {
    std::array::from_fn(|value| multiply(factor, value as u8))
}

/// `into` += `from`.
fn add(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "columns of a row are equally long");
    for (a, b) in into.iter_mut().zip(from) {
        *a ^= b;
    }
}

/// `bytes` *= 2, without a branch per byte so that the compiler can vectorise it.
fn double(bytes: &mut [u8]) {
    for byte in bytes {
        let carry = (*byte >> 7).wrapping_neg() & POLYNOMIAL;
        *byte = (*byte << 1) ^ carry;
    }
}

/// The sums P and Q of the available data columns; lost columns count as 0.
#[derive(Clone, Debug)]
pub struct Syndrome {
    p: Vec<u8>,
    /// Empty without RAID6.
    q: Vec<u8>,
}

impl Syndrome {
    /// Creates the zero sums for columns of `length` bytes, with Q if `with_q`.
    pub fn new(length: usize, with_q: bool) -> Self {
        Self { p: vec![0; length], q: vec![0; if with_q { length } else { 0 }] }
    }

    /// Adds the next data column, **from the last to the first**: in this order Q needs only
    /// doublings. `None` is a lost column.
    pub fn add_next_lower(&mut self, column: Option<&[u8]>) {
        double(&mut self.q);
        if let Some(column) = column {
            add(&mut self.p, column);
            if !self.q.is_empty() {
                add(&mut self.q, column);
            }
        }
    }

    /// Returns P and Q of the columns added; Q is empty without RAID6.
    pub fn into_parity(self) -> (Vec<u8>, Vec<u8>) {
        (self.p, self.q)
    }

    /// Computes the only lost data column from P.
    pub(crate) fn solve_by_p(&self, p: &[u8], out: &mut [u8]) {
        out.copy_from_slice(p);
        add(out, &self.p);
    }

    /// Computes the only lost data column, number `lost`, from Q.
    pub(crate) fn solve_by_q(&self, q: &[u8], lost: usize, out: &mut [u8]) {
        let scale = products(inverse_power(lost));
        assert!(q.len() == out.len() && self.q.len() == out.len(), "columns of a row are equally long");
        for ((out, q), sum) in out.iter_mut().zip(q).zip(&self.q) {
            *out = scale[usize::from(q ^ sum)];
        }
    }

    /// Computes data column `lost` from P and Q when `other` is lost as well.
    ///
    /// Let P' and Q' be the sums of the two lost columns alone: P' = Dl + Do and Q' = 2^l Dl + 2^o
    /// Do. Hence Dl = (2^(o-l) P' + 2^-l Q') / (2^(o-l) + 1).
    pub(crate) fn solve_by_both(&self, p: &[u8], q: &[u8], lost: usize, other: usize, out: &mut [u8]) {
        let apart = multiply(power(other), inverse_power(lost));
        let divisor = inverse(apart ^ 1);
        let p_scale = products(multiply(apart, divisor));
        let q_scale = products(multiply(inverse_power(lost), divisor));
        assert!(
            [p.len(), q.len(), self.p.len(), self.q.len()] == [out.len(); 4],
            "columns of a row are equally long"
        );
        for (index, out) in out.iter_mut().enumerate() {
            let p = p[index] ^ self.p[index];
            let q = q[index] ^ self.q[index];
            *out = p_scale[usize::from(p)] ^ q_scale[usize::from(q)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Multiplies bit by bit.
    fn slow_multiply(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = (a << 1) ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
            b >>= 1;
        }
        product
    }

    #[test]
    fn table_arithmetic_matches_definition() {
        for a in 0..=255u8 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), slow_multiply(a, b), "{a} * {b}");
            }
            if a != 0 {
                assert_eq!(slow_multiply(a, inverse(a)), 1, "1 / {a}");
            }
            let mut doubled = [a];
            double(&mut doubled);
            assert_eq!(doubled[0], slow_multiply(a, 2));
        }
        // The generator's powers are all different; recovery of two lost columns relies on that.
        let mut powers: Vec<_> = (0..GROUP_ORDER).map(power).collect();
        powers.sort_unstable();
        assert_eq!(powers, (1..=255).collect::<Vec<u8>>());
    }

    /// Returns P and Q of `data`, computed from their definition.
    fn parity_of(data: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
        let length = data[0].len();
        let (mut p, mut q) = (vec![0; length], vec![0; length]);
        let mut factor = 1;
        for column in data {
            for (index, byte) in column.iter().enumerate() {
                p[index] ^= byte;
                q[index] ^= slow_multiply(factor, *byte);
            }
            factor = slow_multiply(factor, 2);
        }
        (p, q)
    }

    fn sum_without(data: &[Vec<u8>], lost: &[usize]) -> Syndrome {
        let mut syndrome = Syndrome::new(data[0].len(), true);
        for (number, column) in data.iter().enumerate().rev() {
            syndrome.add_next_lower((!lost.contains(&number)).then_some(column));
        }
        syndrome
    }

    fn check_all_losses(data: &[Vec<u8>]) {
        let (p, q) = parity_of(data);
        // Both parity columns lost: recomputed.
        assert_eq!(sum_without(data, &[]).into_parity(), (p.clone(), q.clone()));
        let mut out = vec![0; data[0].len()];
        for lost in 0..data.len() {
            let syndrome = sum_without(data, &[lost]);
            syndrome.solve_by_p(&p, &mut out);
            assert_eq!(out, data[lost], "column {lost} by P");
            syndrome.solve_by_q(&q, lost, &mut out);
            assert_eq!(out, data[lost], "column {lost} by Q");
            for other in (0..data.len()).filter(|&other| other != lost) {
                sum_without(data, &[lost, other]).solve_by_both(&p, &q, lost, other, &mut out);
                assert_eq!(out, data[lost], "column {lost} with {other} lost too");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_two_lost_columns_are_recovered(
            data in (1usize..12, 1usize..40).prop_flat_map(|(columns, length)| {
                prop::collection::vec(prop::collection::vec(any::<u8>(), length), columns)
            })
        ) {
            check_all_losses(&data);
        }
    }

    #[test]
    fn the_widest_row_is_recovered() {
        let data: Vec<Vec<u8>> = (0..255u32).map(|column| vec![(column * 7 + 3) as u8]).collect();
        check_all_losses(&data);
    }
}
