package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/migrations"
)

// connectTimeout leaves room in the five seconds in which a wrong address must have been reported.
const connectTimeout = 3 * time.Second

// connect opens the database as its owner, and sees to it that its schema is the one this program knows. The caller closes
// the connection.
func (c *call) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := config.LoadOwner(c.getenv)
	if err != nil {
		return nil, err
	}
	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(dialCtx, cfg.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	if err := migrations.Check(ctx, conn); err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// change runs fn in one transaction of the owner's.
func (c *call) change(ctx context.Context, fn func(pgx.Tx) error) error {
	return c.inTransaction(ctx, pgx.TxOptions{}, fn)
}

// look runs fn in one transaction that changes nothing and sees one state of the database.
func (c *call) look(ctx context.Context, fn func(pgx.Tx) error) error {
	return c.inTransaction(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}

func (c *call) inTransaction(ctx context.Context, options pgx.TxOptions, fn func(pgx.Tx) error) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return pgx.BeginTxFunc(ctx, conn, options, fn)
}
