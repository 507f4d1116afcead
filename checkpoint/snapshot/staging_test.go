package snapshot_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
	"github.com/shoal-ml/shoal/tensor"
)

// TestAWorkerThatIsLost has a part missing, in several stages.
func TestAWorkerThatIsLost(t *testing.T) {
	var l snapshottest.Lines
	f := snapshot.Folder{Root: t.TempDir(), Keep: 2, Log: l.Say}
	s := &snapshot.State{Step: 5, Workers: 3, Notes: json.RawMessage("{}"),
		Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	memory := [][]byte{make([]byte, 8000)}
	writeParts(t, f, s, memory, 0, 2)
	if steps, _ := f.Sealed(); len(steps) > 0 || l.String() != "" {
		t.Fatalf("%v is sealed without a part: %s", steps, &l)
	}
	writeParts(t, f, s, memory, 1) // its agent was slow
	next := *s
	next.Step, next.Workers = 7, 2
	writeParts(t, f, &next, memory, 1)
	late := next
	late.Step = 9
	writeParts(t, f, &late, memory, 0, 1) // worker 0 takes away what is left of step 7
	if steps, _ := f.Sealed(); !slices.Equal(steps, []snapshot.Attempt{{Step: 9}, {Step: 5}}) ||
		!strings.Contains(l.String(), "step 7 in "+f.Root+" is abandoned: a worker was lost") {
		t.Errorf("sealed %v: %s", steps, &l)
	}
	p := snapshottest.Part(t, f, &next, memory, 7*77, 0)
	if err := os.WriteFile(filepath.Join(f.Root, ".staging-000000000007-000000000000021b"), nil,
		0o666); err != nil {
		t.Fatal(err)
	}
	p.Write()
	// There are none before it, which stay.
	if !strings.Contains(l.String(),
		"step 7 in "+f.Root+" is abandoned, which does not stop the job") ||
		!strings.Contains(l.String(), "; the ones before it stay") {
		t.Error(&l)
	}
}

// TestWhatCannotBeCleanedUp has a receipt that cannot be read stand in the way of one checkpoint:
// the others that were left are removed, and the next one is made.
func TestWhatCannotBeCleanedUp(t *testing.T) {
	var l snapshottest.Lines
	f := snapshot.Folder{Root: t.TempDir(), Keep: 2, Log: l.Say}
	for _, step := range []uint64{3, 5, 7} {
		s, memory := snapshottest.SmallState(step, 2)
		if step < 7 {
			writeParts(t, f, s, memory, 1)
		} else {
			writeParts(t, f, s, memory, 0, 1)
		}
		if step == 3 {
			left, err := filepath.Glob(filepath.Join(f.Root, ".staging-*3-*"))
			if err != nil || len(left) != 1 {
				t.Fatal(left, err)
			}
			for _, name := range []string{".part-00000-of-00002.json", snapshot.StateName} {
				if err := os.Mkdir(filepath.Join(left[0], name), 0o777); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(f.Root, ".staging-*"))
	steps, err2 := f.Sealed()
	if err != nil || err2 != nil || len(left) != 1 || !slices.Equal(steps,
		[]snapshot.Attempt{{Step: 7}}) || !strings.Contains(l.String(), "stays there") {
		t.Errorf("left are %q, %v, and sealed %v, %v: %s", left, err, steps, err2, &l)
	}
}

// TestCleanUp leaves a checkpoint in every state that a kill can leave it in.
func TestCleanUp(t *testing.T) {
	memory := [][]byte{make([]byte, 8000)}
	s := &snapshot.State{Step: 5, Workers: 1, Notes: json.RawMessage("{}"),
		Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	for _, keep := range []string{"", ".part-00000-of-00001.json"} {
		var l snapshottest.Lines
		f := snapshot.Folder{Root: t.TempDir(), Keep: 2, Log: l.Say}
		writeParts(t, f, s, memory, 0)
		// As before the rename.
		staging := filepath.Join(f.Root, ".staging-000000000005-0000000000000181")
		if err := os.Rename(f.Path(5), staging); err != nil {
			t.Fatal(err)
		}
		if keep != "" {
			if err := os.WriteFile(filepath.Join(staging, keep), []byte("{}"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.CleanUp(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readNewest(t, f, 1); err != nil ||
			!strings.Contains(l.String(), "it is sealed now") {
			t.Errorf("%v: %s", err, &l)
		}
		if left, _ := filepath.Glob(filepath.Join(f.Path(5), ".part*")); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// TestAnotherJobInTheFolder has two jobs write the same step: what the second one says must not be
// nothing.
func TestAnotherJobInTheFolder(t *testing.T) {
	var first, second snapshottest.Lines
	root := t.TempDir()
	s, memory := snapshottest.SmallState(5, 2)
	snapshottest.Write(t, snapshot.Folder{Root: root, Keep: 2, Log: first.Say}, s, memory, 55, 0, 1)
	f := snapshot.Folder{Root: root, Keep: 2, Log: second.Say}
	snapshottest.Write(t, f, s, memory, 66, 0, 1)
	if !strings.Contains(first.String(), "is sealed: ") ||
		!strings.Contains(second.String(), "step 5 in "+root+" is abandoned, which does not "+
			"stop the job: another checkpoint of this step was sealed there meanwhile, so another "+
			"job writes into the folder") {
		t.Errorf("the first job says %q, the second %q", &first, &second)
	}
	if left, err := filepath.Glob(filepath.Join(root, ".staging-*")); len(left) > 0 || err != nil {
		t.Errorf("%v is left, %v", left, err)
	}
}

// TestWrongReceipts damages what one worker has left: nothing is sealed with it, and the next to
// come removes it.
func TestWrongReceipts(t *testing.T) {
	s := &snapshot.State{Step: 5, Workers: 2, Notes: json.RawMessage("{}"),
		Tensors: []snapshot.Tensor{{Name: "w", DType: tensor.F64, Shape: tensor.Shape{1000}}}}
	memory := [][]byte{make([]byte, 8000)}
	for _, receipt := range []string{
		`{"files":`,
		`{"files":[{"name":"../x","size":0,"sha256":[]}],"sums":{}}`,
		`{"files":[{"name":"x","size":1,"sha256":[]}],"sums":{}}`,
		`{"files":[{"name":"x","size":1,"sha256":["00"]}],"sums":{}}`,
		`{"files":[],"sums":{"1":5}}`,
		`{"files":[],"sums":{"0":2305843009213693952}}`,
	} {
		var l snapshottest.Lines
		f := snapshot.Folder{Root: t.TempDir(), Keep: 2, Log: l.Say}
		writeParts(t, f, s, memory, 0)
		left, err := filepath.Glob(filepath.Join(f.Root, ".staging-*", ".part-00000-of-00002.json"))
		if err != nil || len(left) != 1 {
			t.Fatal(left, err)
		}
		if err := os.WriteFile(left[0], []byte(receipt), 0o666); err != nil {
			t.Fatal(err)
		}
		writeParts(t, f, s, memory, 1)
		if err := f.CleanUp(); err != nil {
			t.Error(err)
		}
		if steps, err := f.Sealed(); len(steps) > 0 || err != nil ||
			!strings.Contains(l.String(), "step 5 in "+f.Root+" is abandoned") {
			t.Errorf("%s: sealed %v, %v: %s", receipt, steps, err, &l)
		}
	}
}

// TestFolderCalledLatest has a folder or a file where the link to the newest checkpoint belongs:
// checkpoints are sealed all the same, and nothing is left beside them.
func TestFolderCalledLatest(t *testing.T) {
	for _, folder := range []bool{true, false} {
		var l snapshottest.Lines
		f := snapshot.Folder{Root: t.TempDir(), Keep: 2, Log: l.Say}
		at := filepath.Join(f.Root, "latest")
		err := os.WriteFile(at, []byte("global_step100"), 0o666) // as DeepSpeed has it
		if folder {
			err = errors.Join(os.Remove(at), os.MkdirAll(filepath.Join(at, "mine"), 0o777))
		}
		if err != nil {
			t.Fatal(err)
		}
		s, memory := snapshottest.SmallState(5, 1)
		snapshottest.Write(t, f, s, memory, 55, 0)
		var names []string
		list, err := os.ReadDir(f.Root)
		for _, e := range list {
			names = append(names, e.Name())
		}
		if want := []string{"latest", "step-000000000005"}; err != nil ||
			!slices.Equal(names, want) {
			t.Errorf("%q, %v; want %q; %s", names, err, want, &l)
		}
		if text, _ := os.ReadFile(at); !folder && string(text) != "global_step100" {
			t.Errorf("the file was replaced: %q", text)
		}
	}
}

// TestLatestOfNone quarantines the only checkpoint: the link to the newest one goes with it, and
// comes back with the next one. A link that somebody has made to something else stays.
func TestLatestOfNone(t *testing.T) {
	var l snapshottest.Lines
	f := snapshot.Folder{Root: t.TempDir(), Keep: 2, Log: l.Say}
	at := filepath.Join(f.Root, "latest")
	s, memory := snapshottest.SmallState(5, 1)
	for range 2 {
		writeParts(t, f, s, memory, 0)
		if to, err := os.Readlink(at); err != nil || to != "step-000000000005" {
			t.Errorf("sealed: %q, %v: %s", to, err, &l)
		}
		for range 2 {
			f.Quarantine(snapshot.Attempt{Step: 5})
			if to, err := os.Readlink(at); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("quarantined: latest leads to %q, %v", to, err)
			}
		}
	}
	if err := os.Symlink(t.TempDir(), at); err != nil {
		t.Fatal(err)
	}
	f.Quarantine(snapshot.Attempt{Step: 5})
	if _, err := os.Stat(at); err != nil {
		t.Errorf("a link to something else: %v", err)
	}
}

// TestCopyOfACheckpoint has somebody keep a copy of a checkpoint, with its step in fewer digits: it
// is none of the checkpoints of the job, of which as many stay as are to.
func TestCopyOfACheckpoint(t *testing.T) {
	var l snapshottest.Lines
	f := snapshot.Folder{Root: t.TempDir(), Keep: 2, Log: l.Say}
	s, memory := snapshottest.SmallState(5, 1)
	writeParts(t, f, s, memory, 0)
	if err := os.CopyFS(filepath.Join(f.Root, "step-5"), os.DirFS(f.Path(5))); err != nil {
		t.Fatal(err)
	}
	s, memory = snapshottest.SmallState(7, 1)
	writeParts(t, f, s, memory, 0)
	if steps, err := f.Sealed(); err != nil || !slices.Equal(steps,
		[]snapshot.Attempt{{Step: 7}, {Step: 5}}) {
		t.Errorf("sealed are %v, %v: %s", steps, err, &l)
	}
}

// TestRemovedIsWhatWasRenamed has folders beside checkpoints that begin like those that are being
// removed: only the latter go, whoever has renamed them.
func TestRemovedIsWhatWasRenamed(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{".old-notes", ".old-step-000000000005-17",
		".old-staging-000000000005-00000000000000ab-17",
		".old-.staging-000000000005-00000000000000ab-17"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (snapshot.Folder{Root: root}).Sealed(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) != 1 || left[0].Name() != ".old-notes" {
		t.Errorf("left are %v, %v", left, err)
	}
}
