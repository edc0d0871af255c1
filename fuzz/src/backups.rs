//! The repositories and archives that `backup_repository` changes. The tests of the libraries do
//! the same with seeds.

#[path = "../../crates/papilio/tests/support/changed_archives.rs"]
mod archives;
#[path = "../../crates/backup/tests/backup/changed.rs"]
mod repositories;

pub use archives::Archives;
pub use repositories::Repositories;

#[cfg(test)]
mod tests {
    use super::{Archives, Repositories};

    #[test]
    fn seeded_inputs_are_survived() {
        let (repositories, archives) = (Repositories::new(), Archives::new());
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for number in 0..2000 {
            let length = 2 + 4 * (1 + usize::from(byte() % 4));
            let input: Vec<u8> = (0..length).map(|_| byte()).collect();
            match number % 2 {
                0 => repositories.read(&input),
                _ => archives.read(&input),
            };
        }
    }
}
