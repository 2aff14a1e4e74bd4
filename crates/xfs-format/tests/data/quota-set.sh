# Usage and limits of each type of quota, in a mount at $M. Sourced by the tests.
for spec in u:1000 g:1001 p:1002; do
  xfs_quota -x -c "state -${spec%:*}" "$M" | grep -q 'Accounting: ON' || continue
  t=${spec%:*} id=${spec#*:}
  xfs_quota -x -c "limit -$t bsoft=8k bhard=10m isoft=1 ihard=100 rtbsoft=1m rtbhard=2m $id" \
    -c "limit -$t bsoft=1m bhard=6t isoft=5000000000 ihard=5000000001 4000000000" \
    -c "timer -$t -b -d 3days" -c "timer -$t -i -d 4days" -c "timer -$t -r -d 5days" \
    -c "limit -$t -d bsoft=900m bhard=901m isoft=3000 ihard=3001" "$M"
done
yes text | head -c 100000 > "$M/f"; yes text | head -c 5000 > "$M/far"; : > "$M/g"
# Above the soft limits, so that the timers run.
for id in 1000 4000000000; do
  test "$id" = 1000 && files="$M/f $M/g" group=1001 project=1002
  test "$id" = 1000 || { files="$M/far"; group=$id project=$id; }
  chown "$id:$group" $files
  for file in $files; do xfs_io -c "chproj $project" "$file"; done
done
sync -f "$M"
