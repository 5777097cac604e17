//! Tests of the front with clients and real Redis servers. All tests are one program, because each further program
//! would have to be compiled and linked.

mod about;
mod acl;
mod clients;
mod commands;
mod common;
mod confirmed;
mod deadlines;
mod failover;
mod front;
mod keys;
mod large;
mod limits;
mod marks;
mod order;
mod own_writes;
mod packs;
mod pass_through;
mod pinned;
mod pipelines;
mod reads;
mod replicas;
mod requests;
mod rights;
mod router;
mod scripts;
mod slots;
mod subscriptions;
mod table;
mod tls;
mod tracking;
mod transactions;
mod unread;
mod users;
mod walks;
