package checkpoint

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/state/plan"
)

const (
	// PartialSuffix stands after the name of what is being written, until it is published.
	PartialSuffix = ".partial"

	journalName = "journal"
	filesName   = "files"
)

// A staging is the folder in which a checkpoint is assembled. One rename publishes it, so that what
// stands under its name is always complete. The methods read and write files and wait for that,
// except for partialFolder, filesFolder, stagedPath and plan, which compute. The goroutine of Move
// calls them; appendRecord is called by the goroutines that move, one at a time. They too add to
// records; all other fields are set by newStaging.
type staging struct {
	dst     string // path that is published
	single  bool   // whether dst is a file, not a folder
	output  *format.Output
	journal *os.File      // journal of the move, locked by this process
	records []move.Record // records of an earlier run and of this one
	to      *endpoint     // files of the output, as a side of the move
}

// partialFolder returns the folder beside dst that holds the files and the journal.
func (s *staging) partialFolder() string { return s.dst + PartialSuffix }

// filesFolder returns the folder that holds the files themselves, which the rename publishes.
func (s *staging) filesFolder() string { return filepath.Join(s.partialFolder(), filesName) }

// stagedPath returns where a file of the output is staged.
func (s *staging) stagedPath(name string) string {
	return filepath.Join(s.filesFolder(), filepath.FromSlash(name))
}

// newStaging makes the folder, or takes over the folder of an earlier run of the same move, locks
// the journal, and makes the files. It fails when something stands where the checkpoint is to be
// published, and returns errFinished when that is the work of such a run. The caller calls publish,
// or where anything has failed cleanUpFailed; both close the journal.
func newStaging(dst string, single bool, o *format.Output, id move.Identity) (*staging, error) {
	s := &staging{dst: filepath.Clean(dst), single: single, output: o}
	if err := s.checkPlain(); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(s.dst); err == nil {
		if s.alreadyPublished(id) {
			return nil, cmp.Or(os.RemoveAll(s.partialFolder()), errFinished)
		}
		return nil, fmt.Errorf(
			"%s is there already; shoal overwrites nothing: remove it, or choose another name",
			s.dst)
	}
	if err := os.MkdirAll(s.filesFolder(), 0o777); err != nil {
		return nil, err
	}
	var err error
	if s.journal, err = os.OpenFile(filepath.Join(s.partialFolder(), journalName),
		os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	if err := s.lockJournal(id); err != nil {
		return nil, errors.Join(err, s.journal.Close())
	}
	if err = s.createFiles(); err == nil {
		s.to, err = newEndpoint(&o.Checkpoint, fileNames(o))
	}
	if err != nil {
		return nil, errors.Join(err, s.cleanUpFailed(context.Background(), false))
	}
	s.to.files.open = func(name string) (handle, error) {
		return os.OpenFile(s.stagedPath(name), os.O_RDWR, 0)
	}
	return s, nil
}

// plan implements target: it plans the move to the staged files, and reads no dead source file as
// long as replicas allow it.
func (s *staging) plan(from *layout.Layout, dead map[int]bool) (*plan.Plan, error) {
	return newPlan(from, s.to.layout, dead)
}

// prepare implements target: it has the job write to the staged files. What the journal records is
// not moved again.
func (s *staging) prepare(_ context.Context, job *move.Job) error {
	job.New, job.Target, job.Done = s.to.location, &s.to.files, s.records
	job.Record = func(r move.Record) error {
		s.records = append(s.records, r)
		return s.appendRecord(r)
	}
	return nil
}

// close implements target: it closes the staged files.
func (s *staging) close() error { return s.to.files.Close() }

// cleanUpFailed implements target. What was moved well stays for a later run, unless void says that
// it is of no use; where nothing was moved, nothing stays. It closes the journal.
func (s *staging) cleanUpFailed(_ context.Context, void bool) (err error) {
	if void || len(s.records) == 0 {
		err = os.RemoveAll(s.partialFolder()) // while it is still locked
	}
	_ = s.journal.Close() // publish may have done so
	return err
}

// errFinished says that an earlier run of the same move was stopped after it had published and
// before it could clean up.
var errFinished = errors.New("an earlier run has finished this move")

// alreadyPublished reports whether dst is the work of an earlier run of the same move.
func (s *staging) alreadyPublished(id move.Identity) bool {
	staged := s.filesFolder()
	if s.single {
		staged = s.stagedPath(s.output.Files[0].Name)
	}
	_, folder := os.Lstat(s.partialFolder())
	if _, err := os.Lstat(staged); folder != nil || !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	text, err := os.ReadFile(filepath.Join(s.partialFolder(), journalName))
	if errors.Is(err, fs.ErrNotExist) {
		return s.hasPublishedFiles() // it was stopped in the midst of cleaning up
	}
	_, _, other := move.ParseJournal(text, id)
	return errors.Join(err, other) == nil
}

// lockJournal locks the journal and reads the records of an earlier run of the same move from it.
// It does not wait for the lock: it fails when another process has it, when the journal is of
// another move, and when a new move finds a seal or too little space on the disk.
func (s *staging) lockJournal(id move.Identity) error {
	err := durable.Flock(s.journal, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("%s is being written by %s; wait for it, or stop it and run this "+
			"again, or choose another name", s.dst, lockHolder(s.journal))
	}
	if err != nil {
		return fmt.Errorf("%s cannot be locked, without which two commands could write there at "+
			"once: %w; choose a folder on another file system", s.journal.Name(), err)
	}
	text, err := io.ReadAll(s.journal)
	if err != nil {
		return err
	}
	records, good, err := move.ParseJournal(text, id)
	if err != nil {
		return fmt.Errorf("%s is what is left of another move, or the source has changed since: "+
			"%w; remove the folder to start anew", s.partialFolder(), err)
	}
	s.records = records
	if err := s.journal.Truncate(int64(good)); err != nil {
		return err
	}
	if good == 0 {
		if err := cmp.Or(s.checkNoSeal(), s.checkSpace()); err != nil {
			return errors.Join(err, os.RemoveAll(s.partialFolder()))
		}
		_, err = s.journal.WriteAt(move.AppendHeader(nil, id), 0)
	}
	if err == nil {
		_, err = s.journal.Seek(0, io.SeekEnd)
	}
	return err
}

// sealPath returns where the manifest of a single file is published.
func (s *staging) sealPath() string { return s.dst + "." + manifest.Name }

// checkNoSeal fails when the manifest of a file that had the name before is still there: by it, the
// new file would be damaged.
func (s *staging) checkNoSeal() error {
	if _, err := os.Lstat(s.sealPath()); !s.single || err != nil {
		return nil
	}
	return fmt.Errorf("%s is there already, the seal of another %s; shoal overwrites nothing: "+
		"remove it, or choose another name", s.sealPath(), s.dst)
}

// checkSpace fails when the disk has not enough free space.
func (s *staging) checkSpace() error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(s.partialFolder(), &disk); err != nil {
		return err
	}
	var need uint64
	for _, f := range s.output.Files {
		need += uint64(f.Size)
	}
	if free := uint64(disk.Bavail) * uint64(disk.Bsize); need > free {
		return fmt.Errorf(
			"%s would have %d bytes, and the disk has %d free; make room, or choose another disk",
			s.dst, need, free)
	}
	return nil
}

// createFiles makes all files with their sizes.
func (s *staging) createFiles() error {
	for _, f := range s.output.Files {
		if err := os.MkdirAll(filepath.Dir(s.stagedPath(f.Name)), 0o777); err != nil {
			return err
		}
		file, err := os.OpenFile(s.stagedPath(f.Name), os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Truncate(f.Size), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// writeFrames writes the bytes that are not elements. They are written last: without headers, what
// a stopped run leaves does not read as a checkpoint.
func (s *staging) writeFrames() error {
	return s.withStagedFiles(func(open func(file string) (*os.File, error)) error {
		for _, f := range s.output.Frames {
			file, err := open(f.File)
			if err != nil {
				return err
			}
			if _, err := file.WriteAt(f.Bytes, f.Offset); err != nil {
				return err
			}
		}
		return nil
	})
}

// withStagedFiles calls f with a function that opens staged files, of which one is open at a time:
// the next call of open, and the end of f, close it.
func (s *staging) withStagedFiles(f func(open func(file string) (*os.File, error)) error) (
	err error) {
	var open *os.File
	name := ""
	closed := func() error {
		if open == nil {
			return nil
		}
		return open.Close()
	}
	err = f(func(file string) (*os.File, error) {
		if file == name {
			return open, nil
		}
		if err := closed(); err != nil {
			return nil, err
		}
		var err error
		if open, err = os.OpenFile(s.stagedPath(file), os.O_RDWR, 0); err != nil {
			open, name = nil, ""
			return nil, err
		}
		name = file
		return open, nil
	})
	return errors.Join(err, closed())
}

// writeSums computes the checksums of staged files and writes them into these.
func (s *staging) writeSums() error {
	buffer := make([]byte, 1<<20)
	return s.withStagedFiles(func(open func(file string) (*os.File, error)) error {
		for _, sum := range s.output.Sums {
			file, err := open(sum.File)
			if err != nil {
				return err
			}
			hash := crc32.NewIEEE()
			if _, err := io.CopyBuffer(onlyWriter{hash},
				io.NewSectionReader(file, sum.From, sum.To-sum.From), buffer); err != nil {
				return err
			}
			for _, at := range sum.At {
				if _, err := file.WriteAt(binary.LittleEndian.AppendUint32(nil, hash.Sum32()),
					at); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// onlyWriter hides the other methods of a writer, so that io.CopyBuffer uses the buffer that it is
// given.
type onlyWriter struct{ io.Writer }

// appendRecord writes a record to the end of the journal.
func (s *staging) appendRecord(r move.Record) error {
	_, err := s.journal.Write(move.AppendRecord(nil, r))
	return err
}

// publish implements target. It makes the files durable, and then visible under their name, closes
// the journal, and removes the folder. m is complete but for its files, which seal sets.
func (s *staging) publish(ctx context.Context, m *manifest.Manifest, o Options) error {
	if err := errors.Join(s.writeFrames(), s.writeSums()); err != nil {
		return err
	}
	if o.Seal {
		if err := s.seal(ctx, m, o.Workers); err != nil {
			return err
		}
	}
	err := filepath.WalkDir(s.filesFolder(), func(path string, d fs.DirEntry, err error) error {
		return errors.Join(err, durable.Sync(path))
	})
	if err != nil {
		return err
	}
	from := s.filesFolder()
	if s.single {
		from = s.stagedPath(s.output.Files[0].Name)
	}
	if err := s.rename(from); err != nil {
		if s.single && o.Seal { // it would be taken for the seal of what stands at dst
			err = errors.Join(err, os.Remove(s.sealPath()))
		}
		return err
	}
	return errors.Join(durable.Sync(filepath.Dir(s.dst)), s.journal.Close(),
		os.RemoveAll(s.partialFolder()))
}

// seal writes the manifest beside the files, for which it hashes them. The fingerprints are known
// already.
func (s *staging) seal(ctx context.Context, m *manifest.Manifest, workers int) (err error) {
	if m.Files, err = hashFiles(ctx, durable.Folder(s.filesFolder()), fileNames(s.output),
		workers); err != nil {
		return err
	}
	text, err := m.Append(nil)
	if err != nil {
		return err
	}
	staged, final := filepath.Join(s.partialFolder(), manifest.Name),
		filepath.Join(s.filesFolder(), manifest.Name)
	if s.single {
		final = s.sealPath()
	}
	// The manifest is not written beside the files: if the process were killed here, half a
	// manifest would be published with them.
	if err := os.WriteFile(staged, text, 0o666); err != nil {
		return err
	}
	if err := durable.Sync(staged); err != nil {
		return err
	}
	if err := os.Rename(staged, final); err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(final))
}
