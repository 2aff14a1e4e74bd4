//! A bar for building an image, on a terminal.

use cowshed::image::Builder;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows how far the contents are, if standard error is a terminal.
pub(super) fn show(builder: &mut Builder) {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    builder.progress(move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    });
}
