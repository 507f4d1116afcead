package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/strict"
)

// The tasks of a step of Slurm find each other by a file in the folder from which the job was
// submitted. Task 0 writes it, and only its owner can read it: it has a token. The goroutine of the
// command runs what is here; the methods read and write the file.

// slurmMeeting is what the file says. Who reads it does not change it.
type slurmMeeting struct {
	Shoal   string `json:"shoal"`   // "slurm"
	Version int    `json:"version"` // of the format: 1
	// Job, Step and Restart are those of the tasks that the file is for: an earlier start of the
	// job has left another one.
	Job     string `json:"job"`
	Step    string `json:"step"`
	Restart string `json:"restart"`
	Join    string `json:"join,omitempty"`   // HOST:PORT where the job listens
	Token   string `json:"token,omitempty"`  // with which a host joins
	Failed  string `json:"failed,omitempty"` // why the job has failed; "" = it has not
	Over    bool   `json:"over,omitempty"`   // task 0 has ended well
}

// maxMeeting bounds the file, in bytes.
const maxMeeting = 16 << 10

// meetingPatience is how long a task waits for the file: task 0 writes it within a second, and the
// folder may be one that shows new files late.
const meetingPatience = 10 * time.Minute

// parseMeeting reads the text of a file.
func parseMeeting(text []byte) (*slurmMeeting, error) {
	m := &slurmMeeting{}
	if err := strict.JSON(text, m); err != nil {
		return nil, err
	}
	begun, ended := m.Join != "" && m.Token != "", m.Over || m.Failed != ""
	if m.Shoal != "slurm" || m.Version != 1 || begun == ended {
		return nil, errors.New("it does not say where the job listens, or is of another version")
	}
	return m, nil
}

// meetingPath is the path of the file, of which each step of a job has its own.
func (t *slurmTask) meetingPath() string {
	return filepath.Join(t.dir, ".shoal-"+t.job+"."+t.step)
}

// writeMeeting writes the file, for task 0.
func (t *slurmTask) writeMeeting(m slurmMeeting) error {
	m.Shoal, m.Version, m.Job, m.Step, m.Restart = "slurm", 1, t.job, t.step, t.restart
	text, err := json.Marshal(m)
	if err == nil {
		err = durable.WriteSecret(t.meetingPath(), append(text, '\n'))
	}
	t.met = time.Now()
	if err != nil {
		return fmt.Errorf("the other nodes cannot be told where the job listens: %w; submit the "+
			"job from a folder in which you can write, and which all nodes share", err)
	}
	return nil
}

// leaveMeeting ends the use of the file by task 0: nobody joins any more. Tasks that still wait, or
// come late, are told how the job has ended, as err says. Where that is long after the job began no
// task waits, and the file goes.
func (t *slurmTask) leaveMeeting(err error) {
	switch {
	case len(t.nodes) == 1 || !t.met.IsZero() && time.Since(t.met) > meetingPatience:
		_ = os.Remove(t.meetingPath())
	case err != nil:
		_ = t.writeMeeting(slurmMeeting{Failed: err.Error()})
	default:
		_ = t.writeMeeting(slurmMeeting{Over: true})
	}
}

// readMeeting reads the file; nil = it is not there yet. It refuses one that somebody else can have
// written: whoever does has the nodes run what he wants.
func (t *slurmTask) readMeeting() (*slurmMeeting, error) {
	path := t.meetingPath()
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("where the job listens: %w", err)
	}
	if s, is := info.Sys().(*syscall.Stat_t); !info.Mode().IsRegular() ||
		info.Mode().Perm()&0o077 != 0 || is && int(s.Uid) != os.Getuid() {
		return nil, fmt.Errorf("%s is not a file of yours that only you can read, as shoal writes "+
			"it: remove it, and submit the job from a folder in which nobody else can write", path)
	}
	text, err := durable.Read(path, maxMeeting)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
		return nil, nil
	}
	m := (*slurmMeeting)(nil)
	if err == nil {
		m, err = parseMeeting(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s does not say where the job listens: %w; remove it, and submit "+
			"the job again", path, err)
	}
	if m.Job != t.job || m.Step != t.step || m.Restart != t.restart {
		return nil, nil // of an earlier start
	}
	return m, nil
}

// awaitMeeting waits until task 0 has written the file, for patience at most, and tells notes now
// and then that it does.
func (t *slurmTask) awaitMeeting(ctx context.Context, notes io.Writer,
	patience time.Duration) (*slurmMeeting, error) {
	began, say := time.Now(), 2*time.Second
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		// A folder on a network shows a file that is new on another node when it is listed anew.
		_, _ = os.ReadDir(t.dir)
		m, err := t.readMeeting()
		switch {
		case err != nil:
			return nil, err
		case m != nil && m.Failed != "":
			return nil, fmt.Errorf("task 0 on %s says that the job has failed: %s", t.nodes[0],
				m.Failed)
		case m != nil:
			return m, nil
		}
		waited := time.Since(began).Round(time.Second)
		if waited >= patience {
			return nil, fmt.Errorf("task 0 on %s has not written %s within %v: see what it says, "+
				"and whether all nodes share that folder; submit the job from one that they do",
				t.nodes[0], t.meetingPath(), waited)
		}
		if waited >= say {
			say *= 2
			fmt.Fprintf(notes, "shoal: %s waits for task 0 on %s to write %s, for %v now\n", t.node,
				t.nodes[0], t.meetingPath(), waited)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("this node has not joined the job: %w", context.Cause(ctx))
		}
	}
}
