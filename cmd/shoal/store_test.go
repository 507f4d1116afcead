package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/nats"
	"github.com/shoal-ml/shoal/store/storetest"
)

// runNATSServer is a NATS server with its files in a folder, until it is killed: natsd FOLDER
// URLFILE [HOST]. Started again with the same file it has the same port. TestMain runs it in a
// process of its own.
func runNATSServer() {
	options := server.Options{ServerName: "elsewhere", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		NoSigs: true, NoLog: true, JetStream: true, StoreDir: os.Args[1], SyncAlways: true}
	if len(os.Args) > 3 {
		options.Host = os.Args[3]
	}
	err := serveNATS(&options, os.Args[2])
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serveNATS runs a NATS server until it ends. It writes its URL to file, and has the port of a URL
// that is there.
func serveNATS(options *server.Options, file string) error {
	before, err := os.ReadFile(file)
	if err == nil {
		_, err = fmt.Sscanf(string(before), "nats://"+options.Host+":%d", &options.Port)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("the NATS server does not start")
	}
	url := fmt.Sprintf("nats://%s:%d", options.Host, s.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(file+".new", []byte(url), 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}

// printStoredRecord prints what a store has of a job: recorded STORE JOB. TestMain runs it in a
// process of its own.
func printStoredRecord() {
	if err := printRecord(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printRecord prints what a store has of a job's last run.
func printRecord(at, job string) error {
	owner, all, err := readRecord(context.Background(), at, job)
	if err != nil {
		return err
	}
	fmt.Printf("led by %s at %q from generation %d, ended %v\n", owner.Host, owner.Address,
		owner.Generation, !owner.Ended.IsZero())
	for _, g := range all {
		fmt.Printf("%s led by %s since %d\n", g.View, g.Head, g.Since)
	}
	return nil
}

// readRecord opens a store, a URL or a folder, and returns who leads a job, and the generations of
// its last run; it closes the store again.
func readRecord(ctx context.Context, at, job string) (owner store.Owner, all []member.Record,
	err error) {
	var s store.Store
	if strings.Contains(at, "://") {
		s, err = nats.Connect(ctx, nats.Servers{URL: at})
	} else {
		s, err = nats.Open(at)
	}
	if err != nil {
		return owner, nil, err
	}
	defer s.Close()
	if owner, err = store.Find(ctx, s, job); err != nil {
		return owner, nil, err
	}
	j := storetest.NewJournal(s, job, owner.Run)
	numbers, err := j.Generations(ctx)
	for _, n := range numbers {
		g, err := j.Read(ctx, n)
		if err != nil {
			return owner, nil, err
		}
		all = append(all, g)
	}
	return owner, all, err
}
