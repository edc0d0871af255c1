//! `Geometry`: where the bytes of an array lie on its members.
//!
//! It does no I/O. Each level answers the same question: which pieces of which members have the
//! bytes from an offset on, up to the end of one chunk.
//!
//! Sources: the behaviour of `raid5_compute_sector`, `__raid10_find_phys` and `map_sector` in
//! drivers/md of the kernel.

use super::superblock::{MdSuperblock, feature};

/// A layout of RAID 5 or 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParityLayout {
    members: u64,
    level: i32,
    layout: u32,
}

/// A row of a parity array: one chunk of each member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The member with P.
    pub(super) p: usize,
    /// The member with Q.
    pub(super) q: Option<usize>,
    /// Whether Q counts members as DDF does.
    is_ddf: bool,
    members: usize,
}

impl Row {
    /// Returns the number of a member's data in the sums of Q.
    pub(super) fn exponent(&self, member: usize) -> usize {
        if self.is_ddf {
            return member;
        }
        let q = self.q.unwrap_or(self.members - 1);
        let first = (q + 1) % self.members;
        let mut number = 0;
        let mut at = first;
        while at != member {
            if at != self.p && Some(at) != self.q {
                number += 1;
            }
            at = (at + 1) % self.members;
        }
        number
    }

    /// Returns the number of members.
    pub(super) fn members(&self) -> usize {
        self.members
    }

    /// Returns whether a member has data in this row.
    pub(super) fn is_data(&self, member: usize) -> bool {
        member != self.p && Some(member) != self.q
    }
}

impl ParityLayout {
    fn data_members(&self) -> u64 {
        self.members - if self.level == 6 { 2 } else { 1 }
    }

    /// Returns whether this layout is known.
    fn is_known(&self) -> bool {
        match self.level {
            4 => self.members >= 2,
            5 => self.layout <= 5 && self.members >= 2,
            _ => matches!(self.layout, 0..=5 | 8..=10 | 16..=20) && self.members >= 4,
        }
    }

    /// Returns the row of this number, and the member that has data chunk `data` of it.
    pub(super) fn place(&self, row: u64, data: u64) -> (Row, usize) {
        let (n, rest) = (self.members, self.data_members());
        let (p, q, member, is_ddf) = if self.level == 6 {
            self.place_6(row, data)
        } else {
            let left = rest - row % n;
            let (p, member) = match (self.level, self.layout) {
                (4, _) | (_, 5) => (rest, data),
                (_, 0) => (left, skip(data, left)),
                (_, 1) => (row % n, skip(data, row % n)),
                (_, 2) => (left, (left + 1 + data) % n),
                (_, 3) => (row % n, (row % n + 1 + data) % n),
                _ => (0, data + 1),
            };
            (p, None, member, false)
        };
        let row = Row { p: p as usize, q: q.map(|q| q as usize), is_ddf, members: n as usize };
        (row, member as usize)
    }

    /// The layouts of RAID 6.
    fn place_6(&self, row: u64, data: u64) -> (u64, Option<u64>, u64, bool) {
        let (n, rest) = (self.members, self.data_members());
        // P and Q side by side, and the data around them in order.
        let beside = |p: u64| match p {
            p if p == n - 1 => (p, Some(0), data + 1),
            p if data >= p => (p, Some(p + 1), data + 2),
            p => (p, Some(p + 1), data),
        };
        let with = |(p, q, member), is_ddf| (p, q, member, is_ddf);
        let left = n - 1 - row % n;
        let right = row % n;
        // The layouts of RAID 5 on all members but the last, which has Q.
        let (left_5, right_5) = (rest - row % (n - 1), row % (n - 1));
        match self.layout {
            0 => with(beside(left), false),
            1 => with(beside(right), false),
            2 => (left, Some((left + 1) % n), (left + 2 + data) % n, false),
            3 => (right, Some((right + 1) % n), (right + 2 + data) % n, false),
            4 => (0, Some(1), data + 2, false),
            5 => (rest, Some(rest + 1), data, false),
            8 => with(beside(right), true),
            9 => with(beside(n - 1 - (row + 1) % n), true),
            10 => (left, Some((left + n - 1) % n), (left + 1 + data) % n, true),
            16 => (left_5, Some(n - 1), skip(data, left_5), false),
            17 => (right_5, Some(n - 1), skip(data, right_5), false),
            18 => (left_5, Some(n - 1), (left_5 + 1 + data) % (n - 1), false),
            19 => (right_5, Some(n - 1), (right_5 + 1 + data) % (n - 1), false),
            _ => (0, Some(n - 1), data + 1, false),
        }
    }
}

fn skip(data: u64, parity: u64) -> u64 {
    if data >= parity { data + 1 } else { data }
}

/// A zone of a RAID 0 array: a range of rows with the same members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Zone {
    /// Bytes of the array before the zone.
    start: u64,
    /// Bytes of each member before the zone.
    member_start: u64,
    members: Vec<usize>,
}

/// The parameters of RAID 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raid10 {
    members: u64,
    near: u64,
    far: u64,
    is_offset: bool,
    set: u64,
    stride: u64,
}

/// The placement of an array's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Members one after another: the start of each in the array, and its bytes.
    Linear(Vec<(u64, u64)>),
    Stripes {
        zones: Vec<Zone>,
        by_zone: bool,
    },
    Mirror,
    Parity(ParityLayout),
    Mirrors(Raid10),
}

/// A piece of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) member: usize,
    /// Bytes from the start of the member's data.
    pub(super) offset: u64,
}

/// The shape of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) placement: Placement,
    /// Bytes of a chunk.
    pub(super) chunk: u64,
    /// Bytes of the array.
    pub(super) size: u64,
}

impl Geometry {
    /// Returns the shape of an array, from a member's superblock and the sizes of all members'
    /// data. A member that is missing has no size.
    ///
    /// # Errors
    /// The parameter that is not valid.
    pub(super) fn new(superblock: &MdSuperblock, sizes: &[Option<u64>]) -> Result<Self, String> {
        let members = u64::from(superblock.raid_disks);
        let (chunk, component) = (superblock.chunk, superblock.component);
        let needs_chunk = !matches!(superblock.level, -1 | 1);
        if needs_chunk && (chunk == 0 || chunk % 512 != 0 || chunk > 1 << 40) {
            return Err(format!("chunks of {chunk} bytes"));
        }
        let whole = component - component.checked_rem(chunk).unwrap_or(0);
        let overflow = || "a size that no device has".to_owned();
        match superblock.level {
            -1 => linear(chunk, sizes),
            0 => stripes(superblock, sizes),
            1 => Ok(Self { placement: Placement::Mirror, chunk: 1 << 20, size: component }),
            level @ (4..=6) => {
                let layout = ParityLayout { members, level, layout: superblock.layout };
                if !layout.is_known() {
                    return Err(format!("layout {} of {members} members", superblock.layout));
                }
                let size = whole.checked_mul(layout.data_members()).ok_or_else(overflow)?;
                Ok(Self { placement: Placement::Parity(layout), chunk, size })
            }
            10 => raid10(superblock, members, whole / chunk),
            level => Err(format!("level {level}")),
        }
    }

    /// Returns the places with copies of the byte at `offset`, and the bytes that follow there in
    /// one piece. Not for parity arrays.
    pub(super) fn copies(&self, offset: u64) -> (Vec<Place>, u64) {
        let in_chunk = offset % self.chunk;
        let rest = self.chunk - in_chunk;
        match &self.placement {
            Placement::Linear(members) => {
                let at = members.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
                let (start, length) = members[at];
                let offset = offset - start;
                (vec![Place { member: at, offset }], length - offset)
            }
            Placement::Stripes { zones, by_zone } => {
                let at = zones.partition_point(|zone| zone.start <= offset).saturating_sub(1);
                let zone = &zones[at];
                let (count, inside) = (zone.members.len() as u64, offset - zone.start);
                let counted = if *by_zone { inside } else { offset };
                let member = zone.members[(counted / self.chunk % count) as usize];
                let offset = zone.member_start + inside / (self.chunk * count) * self.chunk + in_chunk;
                (vec![Place { member, offset }], rest)
            }
            Placement::Mirror => (Vec::new(), rest),
            Placement::Parity(_) => (Vec::new(), rest),
            Placement::Mirrors(raid) => (raid.copies(offset / self.chunk, in_chunk, self.chunk), rest),
        }
    }

    /// Returns the row, the member and the offset in it of the byte at `offset`, in a parity array.
    pub(super) fn parity(&self, layout: &ParityLayout, offset: u64) -> (Row, Place) {
        let number = offset / self.chunk;
        let row_number = number / layout.data_members();
        let (row, member) = layout.place(row_number, number % layout.data_members());
        (row, Place { member, offset: row_number * self.chunk + offset % self.chunk })
    }
}

impl Raid10 {
    fn copies(&self, chunk_number: u64, in_chunk: u64, chunk: u64) -> Vec<Place> {
        let n = self.members;
        let first = chunk_number * self.near;
        let (mut member, mut row) = (first % n, first / n);
        if self.is_offset {
            row *= self.far;
        }
        let last_start = (n / self.set - 1) * self.set;
        let last_size = self.set + n % self.set;
        let mut found = Vec::new();
        for _ in 0..self.near {
            let (mut at, mut offset) = (member, row * chunk + in_chunk);
            found.push(Place { member: at as usize, offset });
            for _ in 1..self.far {
                let set = at / self.set;
                at += self.near;
                if !n.is_multiple_of(self.set) && at > last_start {
                    at = (at - last_start) % last_size + last_start;
                } else {
                    at = at % self.set + self.set * set;
                }
                offset += self.stride;
                found.push(Place { member: at as usize, offset });
            }
            member += 1;
            if member >= n {
                member = 0;
                row += 1;
            }
        }
        found
    }
}

fn linear(chunk: u64, sizes: &[Option<u64>]) -> Result<Geometry, String> {
    let (mut members, mut start) = (Vec::new(), 0_u64);
    for size in sizes {
        let size = size.ok_or("a member is missing")?;
        let whole = size - size.checked_rem(chunk).unwrap_or(0);
        members.push((start, whole));
        start = start.checked_add(whole).ok_or("a size that no device has")?;
    }
    Ok(Geometry { placement: Placement::Linear(members), chunk: 1 << 20, size: start })
}

fn stripes(superblock: &MdSuperblock, sizes: &[Option<u64>]) -> Result<Geometry, String> {
    let chunk = superblock.chunk;
    let mut wholes = Vec::new();
    for size in sizes {
        let size = size.ok_or("a member is missing")?;
        wholes.push(size - size % chunk);
    }
    let (mut zones, mut start, mut member_start) = (Vec::new(), 0_u64, 0);
    loop {
        let members: Vec<usize> = (0..wholes.len()).filter(|at| wholes[*at] > member_start).collect();
        let Some(end) = members.iter().map(|at| wholes[*at]).min() else { break };
        let length = (end - member_start).checked_mul(members.len() as u64);
        zones.push(Zone { start, member_start, members });
        start = length.and_then(|length| start.checked_add(length)).ok_or("a size that no device has")?;
        member_start = end;
    }
    if zones.is_empty() {
        return Err("members without data".to_owned());
    }
    let layout = if superblock.features & feature::RAID0_LAYOUT != 0 { superblock.layout } else { 0 };
    let by_zone = match layout {
        2 => true,
        1 => false,
        // In one zone both layouts are the same.
        _ if zones.len() == 1 => false,
        _ => return Err("members of different sizes and no layout: kernels before 5.4 disagree".to_owned()),
    };
    Ok(Geometry { placement: Placement::Stripes { zones, by_zone }, chunk, size: start })
}

fn raid10(superblock: &MdSuperblock, members: u64, chunks: u64) -> Result<Geometry, String> {
    let layout = superblock.layout;
    let (near, far) = (u64::from(layout & 0xff), u64::from(layout >> 8 & 0xff));
    let is_offset = layout & 1 << 16 != 0;
    let set = match layout >> 17 {
        0 => members,
        1 if far > 0 => members / far,
        2 => far * near,
        _ => 0,
    };
    let copies = near * far;
    if copies == 0 || copies > members || set == 0 || set > members {
        return Err(format!("layout {layout:#x} of {members} members"));
    }
    let chunk = superblock.chunk;
    let total = (chunks / far).checked_mul(members).ok_or("a size that no device has")? / near;
    let per_member = (total * copies).div_ceil(members);
    let stride = if is_offset { chunk } else { per_member / far * chunk };
    let size = total.checked_mul(chunk).ok_or("a size that no device has")?;
    let placement = Placement::Mirrors(Raid10 { members, near, far, is_offset, set, stride });
    Ok(Geometry { placement, chunk, size })
}
