//! Volumes: logical addresses to places on devices, whatever the profile.
