use super::*;

/// `dst += coef * src` by carry-less multiplication and reduction, bit by bit.
pub(super) fn schoolbook(coef: u8, src: &[u8], dst: &mut [u8]) {
    for (d, &s) in dst.iter_mut().zip(src) {
        let mut product = 0_u16;
        for bit in 0..8 {
            if s >> bit & 1 == 1 {
                product ^= u16::from(coef) << bit;
            }
        }
        for bit in (8..15).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11D << (bit - 8);
            }
        }
        *d ^= product as u8;
    }
}

/// Every how many of a test's cases run: all, but under Miri, which takes a thousand times as long.
const STEP: usize = if cfg!(miri) { 29 } else { 1 };

/// Lengths around every register width and unrolling, and some of real packets.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=140).chain([191, 192, 193, 255, 256, 257, 383, 511, 513, 1023, 1400]).step_by(STEP)
}

fn multiplies_by_every_coefficient(engine: &'static dyn Engine) {
    let src: Vec<u8> = (0..=255).collect();
    for coef in (0..=255).step_by(STEP) {
        let mut dst = noise(256, usize::from(coef));
        let mut expected = dst.clone();
        engine.mul_add(coef, &src, &mut dst);
        schoolbook(coef, &src, &mut expected);
        assert_eq!(dst, expected, "coefficient {coef}");
    }
}

fn takes_any_length_and_alignment(engine: &'static dyn Engine) {
    for len in lengths() {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 62), (63, 2)] {
            let src = noise(from + len, len);
            let mut dst = noise(to + len + 64, len + 1);
            let mut expected = dst.clone();
            engine.mul_add(0xA7, &src[from..], &mut dst[to..to + len]);
            schoolbook(0xA7, &src[from..], &mut expected[to..to + len]);
            assert_eq!(dst, expected, "{len} bytes from {from} to {to}");
        }
    }
}

fn fills_many_rows(engine: &'static dyn Engine) {
    for rows in (0..=19).chain([32, 33]).step_by(STEP.min(9)) {
        for len in lengths().filter(|len| len % 7 < 3 || *len < 10) {
            for stride in [len, len + 1, len.next_multiple_of(64) + 64] {
                let coefs = noise(rows, rows + len);
                let src = noise(len, len);
                // The last row ends with the slice where it can.
                let size = if rows == 0 { 0 } else { (rows - 1) * stride + len };
                let mut dst = noise(size, rows);
                let mut expected = dst.clone();
                engine.mul_add_rows(&coefs, &src, &mut dst, stride);
                for (r, &coef) in coefs.iter().enumerate() {
                    schoolbook(coef, &src, &mut expected[r * stride..][..len]);
                }
                assert!(dst == expected, "{rows} rows of {len} bytes, stride {stride}");
            }
        }
    }
}

fn takes_sources_together(engine: &'static dyn Engine) {
    let (lengths, rows) = if cfg!(miri) {
        (vec![5, 64, 200], vec![5])
    } else {
        (lengths().chain([2047, 2048, 2113, 4096 + 65]).collect(), vec![1, 2, 3, 4, 5, 8, 9])
    };
    for rows in rows {
        for (case, &len) in lengths.iter().enumerate() {
            // Alike, ragged, and with an empty one among them.
            for (shape, count) in [(0, case % 6), (case % 40, 4), (len, 4), (case % 70, 7), (case % 40, 9)] {
                let mut packets: Vec<_> =
                    (0..count).map(|s| noise(len.saturating_sub(s * shape), s + len)).collect();
                if case % 2 == 1 {
                    packets.reverse();
                }
                let columns: Vec<_> = (0..count).map(|s| noise(rows, s + rows)).collect();
                let sources: Vec<_> =
                    columns.iter().zip(&packets).map(|(coefs, bytes)| Source { coefs, bytes }).collect();
                let stride = len + case % 3;
                let longest = packets.iter().map(Vec::len).max().unwrap_or(0);
                for fresh in [false, true] {
                    let mut dst = noise((rows - 1) * stride + len, rows);
                    let mut expected = dst.clone();
                    if fresh {
                        engine.mul_sources(&sources, &mut dst, stride);
                        let filled = if count == 0 { 0 } else { rows };
                        (0..filled).for_each(|r| expected[r * stride..][..longest].fill(0));
                    } else {
                        engine.mul_add_sources(&sources, &mut dst, stride);
                    }
                    for Source { coefs, bytes } in &sources {
                        for (r, &coef) in coefs.iter().enumerate() {
                            schoolbook(coef, bytes, &mut expected[r * stride..][..bytes.len()]);
                        }
                    }
                    assert!(
                        dst == expected,
                        "{count} sources of {len} bytes less {shape} each, {rows} rows, stride {stride}, fresh {fresh}"
                    );
                }
            }
        }
    }
}

fn refuses_slices_that_do_not_fit(engine: &'static dyn Engine) {
    let panics = |test: &(dyn Fn() + std::panic::RefUnwindSafe)| {
        assert!(std::panic::catch_unwind(test).is_err());
    };
    let name = engine.name();
    let again = move || engine::available().find(|engine| engine.name() == name).unwrap();
    panics(&move || again().mul_add(2, &[1; 100], &mut [0; 99]));
    panics(&move || again().mul_add(2, &[1; 99], &mut [0; 100]));
    panics(&move || again().mul_add_rows(&[2, 3], &[1; 100], &mut [0; 199], 100));
    panics(&move || again().mul_add_rows(&[2, 3], &[1; 100], &mut [0; 300], 99));
    panics(&move || again().mul_add_rows(&[2, 3, 4], &[1; 4], &mut [0; 300], usize::MAX / 2 + 1));
    let sources = |len| [Source { coefs: &[2, 3], bytes: &[1; 100][..len] }; 4];
    panics(&move || again().mul_add_sources(&sources(100), &mut [0; 199], 100));
    panics(&move || again().mul_add_sources(&sources(100), &mut [0; 300], 99));
    panics(&move || again().mul_add_sources(&sources(4), &mut [0; 300], usize::MAX));
    let one_row = [Source { coefs: &[2], bytes: &[1; 100] }; 5];
    panics(&move || again().mul_add_sources(&one_row, &mut [0; 99], 100));
    panics(&move || again().mul_sources(&one_row, &mut [0; 100], 99));
    let unequal =
        [Source { coefs: &[2; 3], bytes: &[1; 64] }, sources(64)[0], sources(64)[0], sources(64)[0]];
    panics(&move || again().mul_add_sources(&unequal, &mut [0; 128], 64));
}

macro_rules! kernels {
    ($($module:ident: $engine:literal;)*) => {$(
        mod $module {
            use super::*;

            fn with(test: fn(&'static dyn Engine)) {
                if let Some(engine) = engine_or_skip($engine) {
                    test(engine);
                }
            }

            #[test]
            fn every_coefficient() {
                with(multiplies_by_every_coefficient);
            }

            #[test]
            fn any_length_and_alignment() {
                with(takes_any_length_and_alignment);
            }

            #[test]
            fn many_rows() {
                with(fills_many_rows);
            }

            #[test]
            fn sources_together() {
                with(takes_sources_together);
            }

            #[test]
            fn bounds() {
                with(refuses_slices_that_do_not_fit);
            }
        }
    )*

        /// So that no kernel is left out of the suites.
        #[test]
        fn every_kernel_is_tested() {
            assert_eq!(engine::NAMES, [$($engine),*]);
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels! {
    gfni_avx512: "gfni-avx512";
    gfni_avx2: "gfni-avx2";
    avx2: "avx2";
    swar: "swar";
    portable: "portable";
}

#[cfg(target_arch = "aarch64")]
kernels! {
    neon: "neon";
    swar: "swar";
    portable: "portable";
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
kernels! {
    swar: "swar";
    portable: "portable";
}

#[test]
fn detects_the_fastest() {
    let names: Vec<_> = engine::available().map(Engine::name).collect();
    println!("engines here: {names:?}");
    assert_eq!(engine::detect().name(), names[0]);
    assert_eq!(names.last(), Some(&"portable"));
    assert!(names.iter().all(|name| engine::NAMES.contains(name)));
}
