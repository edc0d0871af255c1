//! The file systems that the targets mutate: the kernel's from the repository, and small ones.
//!
//! Owns [`Images`], which a target makes before its first input.

use papilio_simulator::{BaseImage, small_images};

/// File systems to mutate.
pub struct Images {
    kernels: [BaseImage; 3],
    small: [BaseImage; 4],
}

impl Default for Images {
    /// Loads and makes the images.
    fn default() -> Self {
        Self {
            kernels: [
                BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-default.img.zst")),
                BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-mixed.img.zst")),
                kernels_log(),
            ],
            small: small_images().expect("a device in memory"),
        }
    }
}

impl Images {
    /// Returns the image that a byte chooses. One byte in `one_in` chooses one of the first
    /// `kernels` of the kernel's, which take longer.
    pub fn choose(&self, choice: u8, one_in: u8, kernels: usize) -> &BaseImage {
        let number = usize::from(choice / one_in);
        match choice % one_in {
            0 => &self.kernels[number % kernels],
            _ => &self.small[number % self.small.len()],
        }
    }
}

/// Loads the image of the kernel's that has a log.
pub fn kernels_log() -> BaseImage {
    BaseImage::load(include_bytes!("../../tests/fixtures/fsync-log.img.zst"))
}
