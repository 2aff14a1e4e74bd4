# Changes of quotas that stay in the log, in a mount at $M.
for n in 1 2 3 4 5 6; do yes more | head -c 20000 > "$M/new$n"; chown "$((1000 + n)):$((2000 + n))" "$M/new$n"; done
chown 1000:1001 "$M/new1"; xfs_io -c 'chproj 1002' "$M/new1"; rm "$M/new2"
xfs_io -c fsync "$M/new3"; mkdir "$M/sub"; ln -s target "$M/link"; : > "$M/sub/file"
xfs_io -c 'truncate 0' -c fsync "$M/new4"; xfs_io -c 'pwrite -q 0 9000' -c fsync "$M/new5"
