package checkpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/state/plan"
)

// A move into a bucket, as a target. The goroutine of Move alone calls these functions, which wait
// for the store unless they say that they do not.

const (
	markVersion    = "partial/1"
	maxMarkBytes   = 4096            // largest mark that is read
	cleanupTimeout = 2 * time.Minute // time to remove what a failed move has left
)

// An upload is a bucket in which a checkpoint is assembled. A bucket has no rename; instead a mark,
// written first and removed last, says that what lies below the name is not complete.
// docs/formats/journal.md has the rules. The goroutine of Move calls the methods: those that take a
// context ask the store and wait for it, the others compute. parts guards itself against the
// goroutines of the move.
type upload struct {
	dst    string     // URL that is published
	bucket *s3.Bucket // the folder, or the folder that holds the file
	file   string     // name of the file; "" = a folder
	output *format.Output
	id     move.Identity
	run    string // identifier of this run in the mark
	parts  *partWriter
	to     *endpoint // files of the output, as a side of the move
}

// A mark says which move is writing, and which run of it.
type mark struct {
	Shoal string `json:"shoal"` // markVersion
	Move  string `json:"move"`  // identity of the move, the same in every run
	Run   string `json:"run"`   // identifier of the run
}

// markName returns the name of the mark below the bucket.
func (u *upload) markName() string { return u.file + PartialSuffix }

// manifestName returns the name of the manifest below the bucket.
func (u *upload) manifestName() string { return manifestName(u.file) }

// ownFiles returns the names that a move writes, without its mark.
func (u *upload) ownFiles() []string {
	// the manifest is removed first
	return append([]string{u.manifestName()}, fileNames(u.output)...)
}

// newUpload writes the mark if nothing is there except the remains of an earlier run of the same
// move, which are removed. It returns errFinished when that run had completed everything but
// removing its mark. The caller calls publish, or where anything has failed cleanUpFailed.
func newUpload(ctx context.Context, dst string, o *format.Output, id move.Identity) (*upload,
	error) {
	u := &upload{dst: strings.TrimSuffix(dst, "/"), output: o, id: id}
	folder, parent, name, err := openURL(u.dst)
	if err != nil {
		return nil, err
	}
	if parent == nil {
		return nil, fmt.Errorf(
			"%s is a bucket, and not a folder or file in one: name one, such as %s/step-1000",
			u.dst, u.dst)
	}
	u.bucket = folder
	if isSingleFile(o, u.dst) {
		u.bucket, u.file = parent, name
	}
	if u.to, err = newEndpoint(&o.Checkpoint, fileNames(o)); err != nil {
		return nil, err
	}
	if u.parts, err = newPartWriter(ctx, u.bucket, o); err != nil {
		return nil, err
	}
	if err := u.checkVacant(ctx, parent, name); err != nil {
		return nil, err
	}
	u.run = rand.Text()
	text, err := json.Marshal(mark{markVersion, hex.EncodeToString(id[:]), u.run})
	if err == nil {
		err = u.bucket.WriteFile(ctx, u.markName(), append(text, '\n'))
	}
	return u, err
}

// checkVacant fails when something is there that no run of the same move has written; parent and
// name are those of openURL for dst. The error is errFinished as newUpload says.
func (u *upload) checkVacant(ctx context.Context, parent *s3.Bucket, name string) error {
	found, err := u.bucket.Sizes(ctx, u.file)
	if err != nil {
		return err
	}
	taken := fmt.Errorf(
		"%s is there already; shoal overwrites nothing: remove it, or choose another name", u.dst)
	mine := append(u.ownFiles(), u.markName())
	for other := range found {
		if u.file != "" && !slices.Contains(mine, other) && !strings.HasPrefix(other, u.file+"/") {
			delete(found, other) // a file whose name only begins so
		}
	}
	if u.file == "" {
		if is, err := parent.Has(ctx, name); err != nil || is {
			return cmp.Or(err, taken)
		}
	}
	if len(found) == 0 {
		return nil
	}
	m, err := u.readMark(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return taken
	}
	if err != nil {
		return err
	}
	if m.Move != hex.EncodeToString(u.id[:]) {
		return fmt.Errorf("%s is what is left of another move, or the source has changed since, "+
			"or another command writes there; remove it, with its %s, to start anew", u.dst,
			u.markName())
	}
	for other := range found {
		if !slices.Contains(mine, other) {
			return fmt.Errorf("%s/%s is there, and nothing that this move writes: remove it, or "+
				"choose another name", u.bucket, other)
		}
	}
	if _, sealed := found[u.manifestName()]; sealed {
		return cmp.Or(u.bucket.RemoveFiles(ctx, u.markName()), errFinished)
	}
	return nil
}

// readMark reads the mark from the bucket. The error is fs.ErrNotExist when there is none.
func (u *upload) readMark(ctx context.Context) (m mark, err error) {
	text, err := u.bucket.ReadFile(ctx, u.markName(), maxMarkBytes)
	if err != nil {
		return m, err
	}
	if err = strict.JSON(text, &m); err == nil && m.Shoal != markVersion {
		err = fmt.Errorf("the field shoal is %q, not %q", m.Shoal, markVersion)
	}
	if err != nil {
		return m, fmt.Errorf(
			"%s/%s is no mark of an unfinished checkpoint: %w; remove it, and what is below %s",
			u.bucket, u.markName(), err, u.dst)
	}
	return m, nil
}

// checkMark reads the mark, and fails when it belongs to another run, or is gone.
func (u *upload) checkMark(ctx context.Context) error {
	m, err := u.readMark(ctx)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if m.Run != u.run {
		return fmt.Errorf("%s: another command writes there, or has removed what was there", u.dst)
	}
	return nil
}

// removeOwnFiles removes everything that a run of this move has written, without the mark.
func (u *upload) removeOwnFiles(ctx context.Context) error {
	own := u.ownFiles()
	if err := u.bucket.AbortUploads(ctx, u.file, own); err != nil {
		return err
	}
	found, err := u.bucket.Sizes(ctx, u.file)
	if err != nil {
		return err
	}
	own = slices.DeleteFunc(own, func(name string) bool { _, is := found[name]; return !is })
	if len(own) == 0 {
		return nil
	}
	return errors.Join(u.bucket.RemoveFiles(ctx, own[0]), u.bucket.RemoveFiles(ctx, own[1:]...))
}

// plan implements target: it plans the move of everything to the bucket. Every part is made from
// the source, because what was sent cannot be read.
func (u *upload) plan(from *layout.Layout, dead map[int]bool) (*plan.Plan, error) {
	c := plan.Cluster{Devices: []int{u.to.layout.Ranks}, Old: make([]int, from.Ranks),
		New: make([]int, u.to.layout.Ranks), Fresh: true}
	for rank := range dead {
		c.Old[rank] = plan.Lost
	}
	return plan.Build(from, u.to.layout, c)
}

// prepare implements target: it removes whatever an earlier attempt has sent, and has the job write
// to the bucket.
func (u *upload) prepare(ctx context.Context, job *move.Job) (err error) {
	if err := errors.Join(u.parts.abortUploads(ctx), u.removeOwnFiles(ctx)); err != nil {
		return err
	}
	if u.parts, err = newPartWriter(ctx, u.bucket, u.output); err != nil {
		return err
	}
	job.New, job.Target, job.Workers = u.to.location, u.parts, u.parts.maxBlocksInFlight()
	job.Begin, job.End = u.parts.countBlocks, u.parts.endBlock
	return nil
}

// publish implements target: it checks what was sent, writes the manifest, and removes the mark.
// The manifest m, complete but for its files, comes last, and is always written.
func (u *upload) publish(ctx context.Context, m *manifest.Manifest, _ Options) error {
	if err := u.parts.sendRest(); err != nil {
		return err
	}
	if err := u.checkMark(ctx); err != nil {
		return err
	}
	// An upload may still be open although its completion was requested: the answer was lost.
	if err := u.bucket.AbortUploads(ctx, u.file, u.ownFiles()); err != nil {
		return err
	}
	found, err := u.bucket.Sizes(ctx, u.file)
	if err != nil {
		return err
	}
	for _, f := range u.output.Files {
		if n, ok := found[f.Name]; !ok || n != f.Size {
			return fmt.Errorf("%s/%s has %d bytes, and %d were sent: another command writes "+
				"there, or the store is faulty", u.bucket, f.Name, n, f.Size)
		}
	}
	if u.file == "" && len(found) != len(u.output.Files)+1 {
		return fmt.Errorf("%s: something else was written there meanwhile: choose a name that "+
			"is used by nobody else", u.dst)
	}
	m.Files = u.parts.sentFiles()
	text, err := m.Append(nil)
	if err == nil {
		err = u.bucket.WriteFile(ctx, u.manifestName(), text)
	}
	if err == nil {
		err = u.checkMark(ctx)
	}
	if err != nil {
		return err
	}
	return u.bucket.RemoveFiles(ctx, u.markName())
}

// cleanUpFailed implements target: it removes what a failed move has sent, also when the move was
// interrupted because ctx has ended, for up to cleanupTimeout.
func (u *upload) cleanUpFailed(ctx context.Context, _ bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := u.parts.abortUploads(ctx)
	if lost := u.checkMark(ctx); lost != nil {
		return errors.Join(err, lost)
	}
	if err = errors.Join(err, u.removeOwnFiles(ctx)); err == nil {
		err = u.bucket.RemoveFiles(ctx, u.markName())
	}
	if err != nil {
		return fmt.Errorf("what was sent could not be removed, and is void: the same command "+
			"removes it and begins anew: %w", err)
	}
	return nil
}

// close implements target; there is nothing to close.
func (u *upload) close() error { return nil }

// openURL opens the folder that a URL names, and its parent with the name in it; a whole bucket has
// no parent, which is nil. It does not ask the store, and nothing has to be closed.
func openURL(url string) (folder, parent *s3.Bucket, name string, err error) {
	if folder, err = s3.Open(url); err != nil {
		return nil, nil, "", err
	}
	name = path.Base(folder.String())
	up, ok := strings.CutSuffix(folder.String(), "/"+name)
	if !ok || strings.HasSuffix(up, "/") {
		return folder, nil, "", nil
	}
	parent, err = s3.Open(up)
	return folder, parent, name, err
}
